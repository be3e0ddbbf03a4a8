//! How products with many inputs are cut into tiles: the constants of `tile.wgsl`.
//!
//! **Invariant:** both tiles together take at most 16 KiB of workgroup memory, which every adapter
//! has. Knows nothing of where inputs come from and results go: kernels say that.

use std::ops::RangeInclusive;

use crate::params::WgslStruct;
use crate::shader::Shader;

/// Outputs of a tile.
const TILE_OUTS: u32 = 64;

/// A size of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Inputs of each invocation.
    per_lane: u32,
}

impl Tile {
    /// For few inputs, of which a larger tile would hold many that are not there.
    pub(super) const SMALL: Self = Self { per_lane: 2 };
    /// For many. Still larger ones use each weight more often, but leave too few invocations to
    /// hide the latency of memory behind: slower wherever that was measured.
    pub(super) const LARGE: Self = Self { per_lane: 4 };

    /// Tiles for numbers of rows from `first` on.
    pub(super) fn by_rows(first: u32) -> [(RangeInclusive<u32>, Self); 2] {
        let n_small = Self::SMALL.n_inputs();
        [(first..=n_small, Self::SMALL), ((n_small + 1).max(first)..=u32::MAX, Self::LARGE)]
    }

    /// Inputs of a tile.
    pub(super) const fn n_inputs(self) -> u32 {
        8 * self.per_lane
    }

    /// Tiles side by side for so many outputs.
    pub(super) const fn n_groups(n_outputs: u32) -> u32 {
        n_outputs.div_ceil(TILE_OUTS)
    }

    /// A shader that has these constants, and the pieces that need them.
    pub(super) fn shader(
        self,
        name: &'static str,
        params: WgslStruct,
        source: &'static str,
    ) -> Shader {
        Shader::new(name, params, source)
            .with("PER_LANE", self.per_lane)
            .piece(include_str!("tile.wgsl"))
    }

    /// Every size.
    pub(super) const fn examples() -> [Self; 2] {
        [Self::SMALL, Self::LARGE]
    }
}
