//! Sums over the invocations of a workgroup: selects the shared fragment for a kernel.
//!
//! Both fragments declare `struct Lanes`, the first argument of `main`, and `sum_of_lanes`. With
//! subgroups of at least four, sums go through registers; without, through workgroup memory.
//! **Invariant:** all invocations call it, and all get the same sum.

use crate::compiler::PlanCompiler;
use crate::shader::Shader;

/// Minimum and maximum invocations of a workgroup that sums.
const N_LANES: (usize, usize) = (32, 256);

/// Method of summing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReductionMethod {
    /// With subgroups.
    Subgroups,
    /// Without.
    Shared,
}

impl ReductionMethod {
    /// Both methods, for tests that check every text.
    pub(crate) const ALL: [Self; 2] = [Self::Subgroups, Self::Shared];

    /// Returns the method for the device.
    pub(crate) fn on(compiler: &PlanCompiler<'_>) -> Self {
        match compiler.subgroup_sizes() {
            Some((4.., ..=128)) => Self::Subgroups,
            _ => Self::Shared,
        }
    }

    /// Adds the fragment and `N_LANES`, a power of two.
    pub(crate) fn add_to(self, shader: Shader, n_lanes: u32) -> Shader {
        let fragment = match self {
            Self::Subgroups => include_str!("reduce_subgroup.wgsl"),
            Self::Shared => include_str!("reduce_shared.wgsl"),
        };
        shader.with("N_LANES", n_lanes).fragment(fragment)
    }

    /// Adds the fragment with `four_sums_of_lanes`, after the one above.
    pub(crate) fn add_fours_to(self, shader: Shader) -> Shader {
        shader.fragment(match self {
            Self::Subgroups => include_str!("reduce_four_subgroup.wgsl"),
            Self::Shared => include_str!("reduce_four_shared.wgsl"),
        })
    }
}

/// Returns the invocations that share a sum of `n_values` values: each takes at least four, if
/// there are enough.
pub(crate) fn lanes_for(n_values: usize) -> u32 {
    let n_lanes = n_values.div_ceil(4).next_power_of_two().clamp(N_LANES.0, N_LANES.1);
    crate::params::narrow(n_lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_follow_the_values() {
        let sizes = [(1, 32), (128, 32), (129, 64), (256, 64), (1024, 256), (7168, 256)];
        for (n_values, n_lanes) in sizes {
            assert_eq!(lanes_for(n_values), n_lanes, "{n_values} values");
        }
    }
}
