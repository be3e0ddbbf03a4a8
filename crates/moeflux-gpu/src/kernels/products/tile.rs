//! Tiling of products with many inputs: the constants of `tile.wgsl`.
//!
//! **Invariant:** both tiles together take at most 16 KiB of workgroup memory, which every adapter
//! has. The sources of inputs and targets of results are left to the kernels.

use std::ops::RangeInclusive;

use crate::params::WgslStruct;
use crate::shader::Shader;

/// Outputs of a tile.
const TILE_OUTS: u32 = 64;

/// A size of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductTile {
    /// Inputs of each invocation.
    per_lane: u32,
}

impl ProductTile {
    /// For few inputs, which would leave most of a larger tile empty.
    pub(crate) const SMALL: Self = Self { per_lane: 2 };
    /// For many inputs. Even larger tiles reuse each weight more, but leave too few invocations to
    /// hide memory latency: they were slower wherever measured.
    pub(crate) const LARGE: Self = Self { per_lane: 4 };

    /// Returns the tiles for numbers of rows from `first` on.
    pub(crate) fn by_rows(first: u32) -> [(RangeInclusive<u32>, Self); 2] {
        let n_small = Self::SMALL.n_inputs();
        [(first..=n_small, Self::SMALL), ((n_small + 1).max(first)..=u32::MAX, Self::LARGE)]
    }

    /// Returns the inputs of a tile.
    pub(crate) const fn n_inputs(self) -> u32 {
        8 * self.per_lane
    }

    /// Returns the tiles needed for `n_outputs` outputs.
    pub(crate) const fn n_groups(n_outputs: u32) -> u32 {
        n_outputs.div_ceil(TILE_OUTS)
    }

    /// Returns a shader with these constants and the required fragments.
    pub(crate) fn shader(
        self,
        name: &'static str,
        params: WgslStruct,
        source: &'static str,
    ) -> Shader {
        Shader::new(name, params, source)
            .with("PER_LANE", self.per_lane)
            .fragment(include_str!("tile.wgsl"))
    }

    /// Returns every size.
    pub(crate) const fn examples() -> [Self; 2] {
        [Self::SMALL, Self::LARGE]
    }
}
