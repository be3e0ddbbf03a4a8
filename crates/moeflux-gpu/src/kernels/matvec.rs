//! How products with one input are laid over invocations: the constants of `matvec.wgsl`.
//!
//! **Invariant:** workgroup memory stays under 16 KiB, which every adapter has. Knows nothing of
//! where inputs come from and results go: kernels say that.

use crate::kernels::decode_matrix::UNIT_COLS;
use crate::params::WgslStruct;
use crate::shader::Shader;

/// Invocations of a workgroup.
pub(super) const N_INVOCATIONS: u32 = 256;

/// Most rows that are computed one by one, each as if it were alone. On an H200, taking four at
/// once, so that their weights are read once, made a step of 2 to 8 rows 3 times slower, and tiles
/// one of 16 to 32 twice.
pub(super) const ROWS_FEW: u32 = 32;

/// Units of a block that an invocation takes at most: so many have room in workgroup memory.
const UNITS_EACH_MOST: u32 = 2;

/// A layout of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matvec {
    /// Invocations that share outputs.
    team: u32,
    /// Units of columns that each of them takes at once.
    units_each: u32,
    /// Outputs of a team.
    outs: u32,
    /// Invocations that add their sums up without workgroup memory.
    width: u32,
}

impl Matvec {
    /// For rows of `n_cols` columns, `n_outputs` of them in a dispatch, on an adapter with
    /// subgroups of these sizes.
    pub(super) fn new(
        (n_outputs, n_cols): (usize, usize),
        subgroup_sizes: Option<(u32, u32)>,
    ) -> Self {
        let n_units = n_cols.div_ceil(UNIT_COLS);
        let team = match n_units {
            ..12 => 8,
            12..24 => 16,
            _ => 32,
        };
        // Enough workgroups for every core come first, then more use of each staged input.
        let outs = match n_outputs {
            ..1024 => 1,
            1024..4096 => 2,
            _ => 4,
        };
        let units_each = if n_units > 32 { UNITS_EACH_MOST } else { 1 };
        let smallest = subgroup_sizes.map_or(1, |(smallest, _)| smallest.max(1));
        Self { team, units_each, outs, width: smallest.min(team) }
    }

    /// With half as many outputs at once, where each is of two matrices.
    pub(super) const fn of_pairs(self) -> Self {
        Self { outs: self.outs.div_ceil(2), ..self }
    }

    /// Invocations that share outputs.
    pub(super) const fn team(self) -> u32 {
        self.team
    }

    /// Invocations that add their sums up without workgroup memory.
    pub(super) const fn width(self) -> u32 {
        self.width
    }

    /// Outputs of a workgroup.
    pub(super) const fn outs_per_group(self) -> u32 {
        N_INVOCATIONS / self.team * self.outs
    }

    /// A shader that has these constants, and the pieces that need them.
    pub(super) fn shader(
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
            .piece(self.neighbours())
            .piece(include_str!("matvec.wgsl"))
    }

    /// The piece that adds sums of neighbours up.
    pub(super) const fn neighbours(self) -> &'static str {
        neighbours(self.width)
    }

    /// Layouts of every shape, for tests without a GPU.
    pub(super) fn examples() -> Vec<Self> {
        vec![
            Self::new((10_000, 4096), Some((32, 32))),
            Self::new((3000, 4096), None),
            Self::new((100, 4096), Some((4, 4))),
            Self::new((100, 100), None),
        ]
    }
}

/// The piece that adds sums of `width` neighbours up.
pub(super) const fn neighbours(width: u32) -> &'static str {
    match width {
        1 => include_str!("neighbours_none.wgsl"),
        _ => include_str!("neighbours_subgroup.wgsl"),
    }
}
