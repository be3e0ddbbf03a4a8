//! Windows' description of cores.

use std::num::NonZeroUsize;

/// A physical core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Core {
    /// Efficiency class: higher is faster.
    pub(super) class: u8,
    /// Its group of at most 64 processors.
    pub(super) group: u16,
    /// The processors of that group that are its threads.
    pub(super) mask: u64,
}

/// Counts the fastest of the cores whose processors this process may use. `allowed` is a group and
/// a mask; `None` if the process may use several groups.
pub(super) fn n_fastest(cores: &[Core], allowed: Option<(u16, u64)>) -> Option<NonZeroUsize> {
    let is_allowed = |core: &&Core| {
        allowed.is_none_or(|(group, mask)| core.group == group && core.mask & mask != 0)
    };
    let fastest = cores.iter().filter(is_allowed).map(|core| core.class).max()?;
    let is_fastest = |core: &&Core| core.class == fastest;
    NonZeroUsize::new(cores.iter().filter(is_allowed).filter(is_fastest).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns consecutive cores. Each kind has a number of cores, a class, and the threads of a
    /// core.
    fn cores(kinds: &[(usize, u8, u32)]) -> Vec<Core> {
        let (mut cores, mut at) = (Vec::new(), 0_u32);
        for (n_cores, class, n_threads) in kinds {
            for _ in 0..*n_cores {
                let mask = ((1_u64 << n_threads) - 1) << (at % 64);
                let group = u16::try_from(at / 64).unwrap();
                cores.push(Core { class: *class, group, mask });
                at += n_threads;
            }
        }
        cores
    }

    #[track_caller]
    fn check(cores: &[Core], allowed: Option<(u16, u64)>, expected: usize) {
        assert_eq!(n_fastest(cores, allowed).map_or(0, NonZeroUsize::get), expected);
    }

    #[test]
    fn performance_cores_count_once_and_efficiency_cores_not_at_all() {
        // 8 performance cores with two threads each, 16 efficiency cores.
        let hybrid = cores(&[(8, 1, 2), (16, 0, 1)]);
        check(&hybrid, None, 8);
        check(&hybrid, Some((0, 0xf)), 2);
        // Better than no core.
        check(&hybrid, Some((0, 0xff << 16)), 8);
        // 16 cores with 32 threads.
        let alike = cores(&[(16, 0, 2)]);
        check(&alike, Some((0, u64::from(u32::MAX))), 16);
        check(&alike, Some((0, 0b10)), 1);
        // 64 cores with 128 threads, in two groups.
        check(&cores(&[(64, 0, 2)]), None, 64);
        check(&cores(&[(64, 0, 2)]), Some((1, u64::MAX)), 32);
        check(&[], None, 0);
    }
}
