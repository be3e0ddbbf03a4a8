//! Computes available bytes from a system's own figures.

/// Pages of macOS, as counted by `host_statistics64`.
#[cfg(any(target_os = "macos", test))]
#[derive(Clone, Copy, Debug)]
pub(super) struct MacPages {
    pub(super) page_bytes: u64,
    /// Pages of the kernel, and locked pages.
    pub(super) n_wired: u64,
    /// Pages of programs.
    pub(super) n_internal: u64,
    /// The part of them that programs have marked as discardable.
    pub(super) n_purgeable: u64,
    /// Pages that hold compressed pages.
    pub(super) n_compressor: u64,
}

#[cfg(any(target_os = "macos", test))]
impl MacPages {
    /// Returns all memory that is not used by programs and the kernel: the rest is free, or caches
    /// files. Activity Monitor does not count it as used.
    pub(super) fn available_bytes(&self, total_bytes: u64) -> u64 {
        let of_programs = self.n_internal.saturating_sub(self.n_purgeable);
        let n_used = self.n_wired.saturating_add(of_programs).saturating_add(self.n_compressor);
        total_bytes.saturating_sub(n_used.saturating_mul(self.page_bytes))
    }
}

/// Memory of Windows, as reported by `GlobalMemoryStatusEx` and a job object.
#[cfg(any(windows, test))]
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowsMemory {
    pub(super) free_bytes: u64,
    /// Bytes that all programs together may still commit: memory counts from its allocation, even
    /// if it is never accessed.
    pub(super) commit_bytes: u64,
    /// Bytes that this process may commit, by the limits of its job.
    pub(super) job_bytes: Option<u64>,
    /// Bytes that this process has committed.
    pub(super) process_bytes: u64,
}

#[cfg(any(windows, test))]
impl WindowsMemory {
    pub(super) fn available_bytes(&self) -> u64 {
        let of_job = self.job_bytes.map(|limit| limit.saturating_sub(self.process_bytes));
        let of_machine = self.free_bytes.min(self.commit_bytes);
        of_job.map_or(of_machine, |bytes| bytes.min(of_machine))
    }
}

/// Returns `MemAvailable` of `/proc/meminfo`.
#[cfg(target_os = "linux")]
pub(crate) fn available_of_meminfo(meminfo: &str) -> Option<u64> {
    kibibytes(meminfo, "MemAvailable:")
}

/// Returns the value of a line in kB, converted to bytes.
#[cfg(target_os = "linux")]
pub(super) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let n_kibibytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    n_kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Realistic figures of such machines.
    #[test]
    fn a_mac_offers_its_unused_memory() {
        let pages = |n_wired, n_internal, n_purgeable, n_compressor| MacPages {
            page_bytes: 16 << 10,
            n_wired,
            n_internal,
            n_purgeable,
            n_compressor,
        };
        // An M1 of 8 GB with a browser: 1.6, 3.1 and 1.2 GiB in use.
        let small = pages(104_858, 209_715, 6_554, 78_643);
        assert_eq!(small.available_bytes(8 * GIB) / (1 << 20), 2_150);
        // An idle M2 Ultra with 192 GB.
        let large = pages(262_144, 524_288, 0, 0);
        assert_eq!(large.available_bytes(192 * GIB), 180 * GIB);
        // Figures that change while they are being read.
        assert_eq!(pages(u64::MAX, 1, 2, u64::MAX).available_bytes(8 * GIB), 0);
    }

    #[test]
    fn windows_has_the_least_of_its_limits() {
        let room = WindowsMemory {
            free_bytes: 20 * GIB,
            commit_bytes: 30 * GIB,
            job_bytes: None,
            process_bytes: GIB,
        };
        assert_eq!(room.available_bytes(), 20 * GIB);
        // A small page file, and programs that allocated more than they use.
        assert_eq!(WindowsMemory { commit_bytes: 3 * GIB, ..room }.available_bytes(), 3 * GIB);
        assert_eq!(WindowsMemory { job_bytes: Some(4 * GIB), ..room }.available_bytes(), 3 * GIB);
        assert_eq!(WindowsMemory { job_bytes: Some(GIB / 2), ..room }.available_bytes(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo = "MemTotal:       24689764 kB\nMemAvailable:   12345678 kB\nSwapFree: 0 kB\n";
        assert_eq!(available_of_meminfo(meminfo), Some(12_345_678 * 1024));
        for text in
            ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 99999999999999999999 kB"]
        {
            assert_eq!(available_of_meminfo(text), None, "{text:?}");
        }
    }
}
