//! The machine that a figure was measured on, as far as it says what it is.
//!
//! **Invariant:** what a system does not say is missing, and nothing fails.

use std::fs;
use std::num::NonZeroUsize;

use serde_json::{Value, json};

use crate::size::binary;

/// What a record of figures names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    cpu: String,
    n_cores: usize,
    memory_bytes: Option<u64>,
}

impl Machine {
    /// The one this runs on.
    pub(crate) fn here() -> Self {
        Self {
            // Arm's Linux does not name it.
            cpu: moeflux_io::processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            n_cores: n_cores().get(),
            memory_bytes: moeflux_io::total_memory_bytes(),
        }
    }

    /// For machines.
    pub(crate) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "n_cores": self.n_cores,
            "memory_bytes": self.memory_bytes,
        })
    }

    /// Names this machine among those that share a home folder.
    pub(crate) fn key(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{} {}", self.text(), host.trim()).trim_end().to_owned()
    }

    /// What its CPU is called.
    pub(crate) fn cpu(&self) -> &str {
        &self.cpu
    }

    /// Cores that this process may use.
    pub(crate) fn n_cores(&self) -> usize {
        self.n_cores
    }

    /// All of its memory.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let memory = self.memory_bytes.map_or("memory unknown".to_owned(), binary);
        format!("{}, {} cores, {memory}", self.cpu, self.n_cores)
    }
}

/// Cores that this process may use.
pub(crate) fn n_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// What the processor's package has used so far, in millionths of a joule, where Linux says so and
/// lets this user read it. It begins anew now and then.
pub(crate) fn package_energy_uj() -> Option<u64> {
    fs::read_to_string("/sys/class/powercap/intel-rapl:0/energy_uj").ok()?.trim().parse().ok()
}

/// What Linux says of the time that all cores have counted, and this process.
pub(crate) fn cpu_times() -> Option<[String; 2]> {
    let read = |path: &str| fs::read_to_string(path).ok();
    Some([read("/proc/stat")?, read("/proc/self/stat")?])
}

/// The bytes of a line such as `MemTotal:  24689764 kB`.
pub(crate) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let n_kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    n_kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_what_linux_writes() {
        let status = "VmPeak:\t  9 kB\nVmHWM:\t    1234 kB\n";
        assert_eq!(kibibytes(status, "VmHWM:"), Some(1234 * 1024));
        for text in ["", "MemTotal:", "MemTotal: many kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kibibytes(text, "MemTotal:"), None);
        }
    }
}
