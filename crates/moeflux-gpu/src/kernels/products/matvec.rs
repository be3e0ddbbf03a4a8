//! Distribution of products with one input over invocations: the constants of `matvec.wgsl`.
//!
//! **Invariant:** workgroup memory stays under 16 KiB, which every adapter has. The sources of
//! inputs and targets of results are left to the kernels.

use super::decode_matrix::UNIT_COLS;
use crate::params::WgslStruct;
use crate::shader::Shader;

/// Invocations of a workgroup.
pub(crate) const N_INVOCATIONS: u32 = 256;

/// Upper bound on rows that are computed one by one, each as if alone. On an H200, computing four
/// at once, to read their weights once, made a step of 2 to 8 rows 3 times slower, and tiles made
/// one of 16 to 32 rows 2 times slower.
pub(crate) const ROWS_FEW: u32 = 32;

/// Upper bound on an invocation's units of a block: workgroup memory has space for this many.
const UNITS_EACH_MOST: u32 = 2;

/// A distribution of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matvec {
    /// Invocations that share outputs.
    team: u32,
    /// Units of columns that each invocation takes at once.
    units_each: u32,
    /// Outputs of a team.
    outs: u32,
    /// Invocations that add up their sums without workgroup memory.
    width: u32,
}

impl Matvec {
    /// Returns the distribution for `n_outputs` rows of `n_cols` columns in a dispatch, on an
    /// adapter with these subgroup sizes.
    pub(crate) fn new(
        (n_outputs, n_cols): (usize, usize),
        subgroup_sizes: Option<(u32, u32)>,
    ) -> Self {
        let n_units = n_cols.div_ceil(UNIT_COLS);
        let team = match n_units {
            ..12 => 8,
            12..24 => 16,
            _ => 32,
        };
        // Enough workgroups for every core come first, then more reuse of each staged input.
        let outs = match n_outputs {
            ..1024 => 1,
            1024..4096 => 2,
            _ => 4,
        };
        let units_each = if n_units > 32 { UNITS_EACH_MOST } else { 1 };
        let smallest = subgroup_sizes.map_or(1, |(smallest, _)| smallest.max(1));
        Self { team, units_each, outs, width: smallest.min(team) }
    }

    /// Halves the outputs at once, for outputs that combine two matrices.
    pub(crate) const fn of_pairs(self) -> Self {
        Self { outs: self.outs.div_ceil(2), ..self }
    }

    /// Returns the number of invocations that share outputs.
    pub(crate) const fn team(self) -> u32 {
        self.team
    }

    /// Returns the number of invocations that add up their sums without workgroup memory.
    pub(crate) const fn width(self) -> u32 {
        self.width
    }

    /// Returns the outputs of a workgroup.
    pub(crate) const fn outs_per_group(self) -> u32 {
        N_INVOCATIONS / self.team * self.outs
    }

    /// Returns a shader with these constants and the required fragments.
    pub(crate) fn shader(
        self,
        name: &'static str,
        params: WgslStruct,
        source: &'static str,
    ) -> Shader {
        Shader::new(name, params, source)
            .with("N_INVOCATIONS", N_INVOCATIONS)
            .with("TEAM", self.team)
            .with("UNITS_EACH", self.units_each)
            .with("OUTS", self.outs)
            .with("WIDTH", self.width)
            .fragment(self.neighbours())
            .fragment(include_str!("matvec.wgsl"))
    }

    /// Returns the fragment that adds up sums of neighbours.
    pub(crate) const fn neighbours(self) -> &'static str {
        neighbours(self.width)
    }

    /// Returns distributions of every shape, for tests without a GPU.
    pub(crate) fn examples() -> Vec<Self> {
        vec![
            Self::new((10_000, 4096), Some((32, 32))),
            Self::new((3000, 4096), None),
            Self::new((100, 4096), Some((4, 4))),
            Self::new((100, 100), None),
        ]
    }
}

/// Returns the fragment that adds up sums of `width` neighbours.
pub(crate) const fn neighbours(width: u32) -> &'static str {
    match width {
        1 => include_str!("neighbours_none.wgsl"),
        _ => include_str!("neighbours_subgroup.wgsl"),
    }
}
