//! How much memory may still be used without pushing out what others need.
//!
//! Systems that say nothing give `None`: then only the allocation itself can fail.

use std::fs;

use crate::control_group::tightest_control_group;

/// Bytes that can be had without swapping, as far as the system says.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_available(&text));
    let group = tightest_control_group().map(|group| group.room_bytes());
    [host, group].into_iter().flatten().min()
}

/// Bytes of memory that this process has now, as far as the system says.
#[must_use]
pub fn process_memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kibibytes(&status, "VmRSS:")
}

/// `MemAvailable` of `/proc/meminfo`.
pub(crate) fn meminfo_available(meminfo: &str) -> Option<u64> {
    kibibytes(meminfo, "MemAvailable:")
}

/// A line of so many kB, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let n_kibibytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    n_kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo = "MemTotal:       24689764 kB\nMemAvailable:   12345678 kB\nSwapFree: 0 kB\n";
        assert_eq!(meminfo_available(meminfo), Some(12_345_678 * 1024));
    }

    #[test]
    fn strange_text_says_nothing() {
        for text in
            ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 99999999999999999999 kB"]
        {
            assert_eq!(meminfo_available(text), None, "{text:?}");
        }
    }
}
