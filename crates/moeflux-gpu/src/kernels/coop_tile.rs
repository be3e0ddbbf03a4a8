//! How products with many inputs are cut into tiles for cooperative matrices: the constants of
//! `coop_tile.wgsl`.
//!
//! **Invariant:** both tiles and what is shown of sums take at most [`WORKGROUP_BYTES`]. Weights
//! and inputs are rounded to half precision, sums are not. Metal never sees these kernels: its
//! matrices are 8 x 8, and those of 16 x 16 are what an adapter must have for them.

use moeflux_kernels::MatrixLayout;

use crate::compiler::Compiler;
use crate::kernels::decode_matrix::{self, UNIT_COLS};
use crate::params::View;
use crate::shader::{Lanes, Shader};

/// Outputs of a tile.
const TILE_OUTS: u32 = 128;
/// Workgroups that keep every core of a large card busy.
const N_GROUPS_GOOD: u32 = 128;

/// What adapters need for the largest tile.
pub(crate) const WORKGROUP_BYTES: u32 = 36 << 10;

/// From so many rows on they are taken: with fewer, most of a tile would be empty.
pub(super) const ROWS_FIRST: u32 = 33;

/// A size of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoopTile {
    /// Blocks of 64 inputs.
    blocks: u32,
}

impl CoopTile {
    pub(super) const SMALL: Self = Self { blocks: 1 };
    /// Makes weights of codes half as often, in half as many workgroups.
    pub(super) const LARGE: Self = Self { blocks: 2 };

    /// Whether products with these inputs and weights are computed so: the device has what that
    /// takes and may round, rows are whole units, and inputs begin at whole quads.
    pub(super) fn takes(compiler: &Compiler<'_>, x: View, layouts: &[MatrixLayout]) -> bool {
        compiler.gpu().stages_f16(compiler.config().arithmetic)
            && [x.first, x.row_stride, x.head_stride].iter().all(|it| it.is_multiple_of(4))
            && layouts.iter().all(|layout| layout.n_cols.is_multiple_of(UNIT_COLS))
    }

    /// The rows from which on large tiles are still enough workgroups.
    pub(super) fn first_large(n_outputs: u32) -> u32 {
        let n_tiles = N_GROUPS_GOOD.div_ceil(Self::n_groups(n_outputs).max(1));
        (n_tiles * Self::LARGE.n_inputs()).max(ROWS_FIRST + 1)
    }

    /// Inputs of a tile.
    pub(super) const fn n_inputs(self) -> u32 {
        64 * self.blocks
    }

    /// Tiles side by side for so many outputs.
    pub(super) const fn n_groups(n_outputs: u32) -> u32 {
        n_outputs.div_ceil(TILE_OUTS)
    }

    /// A shader that has these constants, and the pieces that need them.
    pub(super) fn shader(self, name: &'static str, source: &'static str) -> Shader {
        Shader::new(name, source)
            .with("BLOCKS", self.blocks)
            .cooperative()
            .workspace(Lanes::Four)
            .piece(decode_matrix::PIECE)
            .piece(include_str!("coop_tile.wgsl"))
    }

    /// Every size.
    pub(super) const fn examples() -> [Self; 2] {
        [Self::SMALL, Self::LARGE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tiles_need_many_outputs_or_rows() {
        for (n_outputs, expected) in [(16384, 128), (8192, 256), (2048, 1024), (128, 16384)] {
            assert_eq!(CoopTile::first_large(n_outputs), expected, "{n_outputs} outputs");
        }
    }
}
