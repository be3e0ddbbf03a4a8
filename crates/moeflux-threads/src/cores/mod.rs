//! The number of compute threads: one for each physical core of the fast kind.
//!
//! A section ends when its slowest part does. Two threads of one core share its execution units,
//! and an efficiency core takes several times as long for a part of the same size. All other
//! threads would wait for them at the barrier. **Invariant:** never more threads than the affinity
//! mask and a container's quota allow. Information that the system does not provide is ignored;
//! nothing fails.

#[cfg(any(windows, test))]
mod records;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(windows)]
mod windows;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
mod unknown;

use std::num::NonZeroUsize;

#[cfg(target_os = "linux")]
use self::linux as platform;
#[cfg(target_os = "macos")]
use self::macos as platform;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
use self::unknown as platform;
#[cfg(windows)]
use self::windows as platform;

/// Returns the number of compute threads: one for each physical performance core that this process
/// may use, or one for each processor where the system does not identify these cores.
#[must_use]
pub fn n_compute_threads() -> NonZeroUsize {
    let n_available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    platform::n_performance_cores().map_or(n_available, |n_cores| n_cores.min(n_available))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_one() {
        let n_available = std::thread::available_parallelism().unwrap();
        assert!(n_compute_threads() <= n_available);
    }
}
