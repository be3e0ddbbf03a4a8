//! The machine that a figure was measured on, as far as the system describes it.
//!
//! **Invariant:** values that the system does not report are missing, and nothing fails.

use std::fs;
use std::num::NonZeroUsize;

use serde_json::{Value, json};

use crate::output::size::binary;

/// The description recorded with figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    cpu: String,
    n_cores: usize,
    memory_bytes: Option<u64>,
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Self {
        Self {
            // Linux on Arm does not report it.
            cpu: moeflux_io::processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            n_cores: n_cores().get(),
            memory_bytes: moeflux_io::total_memory_bytes(),
        }
    }

    /// Returns the description as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "n_cores": self.n_cores,
            "memory_bytes": self.memory_bytes,
        })
    }

    /// Returns a key that distinguishes this machine from others with the same home folder.
    pub(crate) fn key(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{} {}", self.text(), host.trim()).trim_end().to_owned()
    }

    /// Returns the name of the CPU.
    pub(crate) fn cpu(&self) -> &str {
        &self.cpu
    }

    /// Returns the number of cores that this process may use.
    pub(crate) fn n_cores(&self) -> usize {
        self.n_cores
    }

    /// Returns the total memory.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Returns the description as text.
    pub(crate) fn text(&self) -> String {
        let memory = self.memory_bytes.map_or("memory unknown".to_owned(), binary);
        format!("{}, {} cores, {memory}", self.cpu, self.n_cores)
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn n_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Returns the energy used by the processor's package so far, in microjoules, if Linux reports it
/// and this user may read it. The counter wraps around.
pub(crate) fn package_energy_uj() -> Option<u64> {
    fs::read_to_string("/sys/class/powercap/intel-rapl:0/energy_uj").ok()?.trim().parse().ok()
}

/// Returns what Linux reports about the CPU times of all cores and of this process.
pub(crate) fn cpu_times() -> Option<[String; 2]> {
    let read = |path: &str| fs::read_to_string(path).ok();
    Some([read("/proc/stat")?, read("/proc/self/stat")?])
}

/// Returns the bytes in a line such as `MemTotal:  24689764 kB`.
pub(crate) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let n_kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    n_kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_files_of_linux_are_parsed() {
        let status = "VmPeak:\t  9 kB\nVmHWM:\t    1234 kB\n";
        assert_eq!(kibibytes(status, "VmHWM:"), Some(1234 * 1024));
        for text in ["", "MemTotal:", "MemTotal: many kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kibibytes(text, "MemTotal:"), None);
        }
    }
}
