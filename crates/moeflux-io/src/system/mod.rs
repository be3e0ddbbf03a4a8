//! Queries of the system: its memory, this process's memory, and the processor.
//!
//! `room` computes an answer from a system's own figures, with the same code everywhere. `linux`,
//! `macos` and `windows` only query the system. **Invariant:** information that a system does not
//! provide is `None`; nothing fails.

pub(crate) mod mounts;
pub(crate) mod control_group;
mod room;
mod disk;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(windows)]
mod windows;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
mod unknown;

use std::path::Path;

#[cfg(target_os = "linux")]
use self::linux as platform;
#[cfg(target_os = "macos")]
use self::macos as platform;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
use self::unknown as platform;
#[cfg(windows)]
use self::windows as platform;

/// Returns the memory of the machine.
#[must_use]
pub fn total_memory_bytes() -> Option<u64> {
    platform::total_memory_bytes()
}

/// Returns the bytes available without swapping, within the limits of this process.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    platform::available_memory_bytes()
}

/// Returns the memory that this process uses now.
#[must_use]
pub fn process_memory_bytes() -> Option<u64> {
    platform::process_memory_bytes().map(|memory| memory.now_bytes)
}

/// Returns the maximum memory that this process has ever used.
#[must_use]
pub fn process_peak_bytes() -> Option<u64> {
    platform::process_memory_bytes().map(|memory| memory.peak_bytes)
}

/// Returns the name of the processor.
#[must_use]
pub fn processor_name() -> Option<String> {
    platform::processor_name().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns the bytes that this user may still write at `dir`, which need not exist yet.
#[must_use]
pub fn free_disk_bytes(dir: &Path) -> Option<u64> {
    let dir = std::path::absolute(dir).ok()?;
    disk::free_bytes(dir.ancestors().find(|it| it.exists())?)
}

/// Memory pressure at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryPressure {
    /// Bytes available on this machine without swapping.
    pub available_bytes: Option<u64>,
    /// Share of the last ten seconds, in hundredths of a percent, in which a task of this process's
    /// control group waited for memory. The value for the whole machine would be meaningless:
    /// another group at its own limit would dominate it. Systems that only report whether memory is
    /// short yield 0 or 10,000.
    pub stalled_e4: Option<u32>,
}

/// Observes memory pressure, at a cost low enough for use while tokens are computed.
///
/// **Invariant:** [`Self::sample`] opens no file and allocates nothing.
#[derive(Debug)]
pub struct MemoryWatch(platform::PressureWatch);

impl MemoryWatch {
    /// Opens the sources that this system has.
    #[must_use]
    pub fn open() -> Self {
        Self(platform::PressureWatch::open())
    }

    /// Returns the memory pressure now.
    pub fn sample(&mut self) -> MemoryPressure {
        self.0.sample()
    }
}

/// All of the last ten seconds.
#[cfg(any(target_os = "macos", windows))]
const STALLED_E4_ALL: u32 = 10_000;

/// Memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    pub(crate) now_bytes: u64,
    pub(crate) peak_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_os = "linux", target_os = "macos", windows))]
    #[test]
    fn this_system_reports_every_figure() {
        let (total, available) = (total_memory_bytes().unwrap(), available_memory_bytes().unwrap());
        assert!(available > 1 << 20 && available <= total, "{available} of {total}");
        let block = vec![1_u8; 32 << 20];
        let now = process_memory_bytes().unwrap();
        let peak = process_peak_bytes().unwrap();
        assert!(now > 32 << 20 && now <= peak && peak < total, "{now}, at most {peak}");
        assert_eq!(block[block.len() - 1], 1);
    }

    #[cfg(any(target_os = "linux", target_os = "macos", windows))]
    #[test]
    fn a_second_sample_has_the_figures_of_the_first() {
        let mut watch = MemoryWatch::open();
        let samples = [watch.sample(), watch.sample()];
        assert!(samples.iter().all(|sample| sample.available_bytes.is_some_and(|it| it > 1 << 20)));
        assert_eq!(samples[0].stalled_e4.is_some(), samples[1].stalled_e4.is_some());
    }

    #[cfg(all(any(target_os = "linux", windows), target_arch = "x86_64"))]
    #[test]
    fn the_processor_has_a_name() {
        let name = processor_name().unwrap();
        assert!(name.len() > 3 && !name.contains('\0'), "{name:?}");
    }
}
