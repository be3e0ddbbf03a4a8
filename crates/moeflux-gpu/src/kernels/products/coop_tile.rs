//! Tiling of products with many inputs for cooperative matrices: the constants of `coop_tile.wgsl`.
//!
//! **Invariant:** both tiles and the exposed sums take at most
//! [`crate::config::MATRIX_WORKGROUP_BYTES`]. Weights and inputs are rounded to half precision,
//! sums are not. These kernels never run on Metal, which has only 8 x 8 matrices; they require 16 x
//! 16.

use moeflux_kernels::MatrixLayout;

use super::decode_matrix::UNIT_COLS;
use crate::compiler::PlanCompiler;
use crate::config::MatrixUnit;
use crate::params::{View, WgslStruct};
use crate::shader::{Shader, VectorWidth};

/// Outputs of a tile.
const TILE_OUTS: u32 = 128;
/// Workgroups that keep every core of a large card busy.
const N_GROUPS_GOOD: u32 = 128;

/// First number of rows for which the unit is used: with fewer, most of a tile would be empty.
pub(crate) const ROWS_FIRST: u32 = 33;

/// A size of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoopTile {
    /// Blocks of 64 inputs.
    blocks: u32,
}

impl CoopTile {
    pub(crate) const SMALL: Self = Self { blocks: 1 };
    /// Decodes weights half as often, in half as many workgroups.
    pub(crate) const LARGE: Self = Self { blocks: 2 };

    /// Returns the unit for products with these inputs and weights, if the device has one and may
    /// round, rows are whole units, and inputs are aligned to quads.
    pub(crate) fn unit_for(
        compiler: &PlanCompiler<'_>,
        inputs: &[View],
        layouts: &[MatrixLayout],
    ) -> Option<MatrixUnit> {
        let places = inputs.iter().flat_map(|x| [x.first, x.row_stride, x.head_stride]);
        let are_quads = places.into_iter().all(|it| it.is_multiple_of(4));
        let are_units = layouts.iter().all(|layout| layout.n_cols.is_multiple_of(UNIT_COLS));
        compiler.gpu().matrix_unit_for(compiler.config()).filter(|_| are_quads && are_units)
    }

    /// Returns the number of rows from which large tiles still give enough workgroups.
    pub(crate) fn first_large(unit: MatrixUnit, n_outputs: u32) -> u32 {
        if unit == MatrixUnit::Plain {
            // Devices without the unit may also lack the memory.
            return u32::MAX;
        }
        let n_tiles = N_GROUPS_GOOD.div_ceil(Self::n_groups(n_outputs).max(1));
        (n_tiles * Self::LARGE.n_inputs()).max(ROWS_FIRST + 1)
    }

    /// Returns the inputs of a tile.
    pub(crate) const fn n_inputs(self) -> u32 {
        64 * self.blocks
    }

    /// Returns the tiles needed for `n_outputs` outputs.
    pub(crate) const fn n_groups(n_outputs: u32) -> u32 {
        n_outputs.div_ceil(TILE_OUTS)
    }

    /// Returns a shader with these constants and the required fragments.
    pub(crate) fn shader(
        self,
        unit: MatrixUnit,
        name: &'static str,
        params: WgslStruct,
        source: &'static str,
    ) -> Shader {
        let shader = Shader::new(name, params, source)
            .with("BLOCKS", self.blocks)
            .workspace(VectorWidth::Four)
            .fragment(include_str!("coop_tile.wgsl"));
        match unit {
            MatrixUnit::Cooperative => {
                shader.cooperative().fragment(include_str!("matrix_unit.wgsl"))
            }
            MatrixUnit::Plain => shader.halves().fragment(include_str!("matrix_unit_plain.wgsl")),
        }
    }

    /// Returns every size, with the units that use it.
    pub(crate) const fn examples() -> [(Self, MatrixUnit); 3] {
        [
            (Self::SMALL, MatrixUnit::Plain),
            (Self::SMALL, MatrixUnit::Cooperative),
            (Self::LARGE, MatrixUnit::Cooperative),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tiles_need_many_outputs_or_rows() {
        for (n_outputs, expected) in [(16384, 128), (8192, 256), (2048, 1024), (128, 16384)] {
            let first = CoopTile::first_large(MatrixUnit::Cooperative, n_outputs);
            assert_eq!(first, expected, "{n_outputs} outputs");
        }
    }
}
