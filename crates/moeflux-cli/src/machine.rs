//! The machine that a figure was measured on, as far as it says what it is.
//!
//! **Invariant:** reads text files only; where a system has none, a fact is missing and nothing
//! fails.

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
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: cpu_name(&read("/proc/cpuinfo")),
            n_cores: n_cores().get(),
            memory_bytes: kibibytes(&read("/proc/meminfo"), "MemTotal:"),
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

/// The most memory this process ever had, where Linux says so.
pub(crate) fn rss_bytes_peak() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The memory that this process has now, where Linux says so.
pub(crate) fn rss_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// What Linux says of the time that all cores have counted, and this process.
pub(crate) fn cpu_times() -> Option<[String; 2]> {
    let read = |path: &str| fs::read_to_string(path).ok();
    Some([read("/proc/stat")?, read("/proc/self/stat")?])
}

/// The first core's name. Arm's Linux and other systems have no such line: then the architecture.
fn cpu_name(cpuinfo: &str) -> String {
    let values = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut named = values.map(|(key, value)| (key.trim(), value.trim()));
    let line = named.find(|(key, value)| *key == "model name" && !value.is_empty());
    line.map_or(std::env::consts::ARCH, |(_, name)| name).to_owned()
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
    fn names_and_sizes_are_read_from_what_linux_writes() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU @ 3 GHz\nx: y\n";
        assert_eq!(cpu_name(cpuinfo), "Some CPU @ 3 GHz");
        let status = "VmPeak:\t  9 kB\nVmHWM:\t    1234 kB\n";
        assert_eq!(kibibytes(status, "VmHWM:"), Some(1234 * 1024));
    }

    #[test]
    fn what_is_not_said_is_missing() {
        for text in ["", "model name", "model name\t:\n", "processor\t: 0\n"] {
            assert_eq!(cpu_name(text), std::env::consts::ARCH);
        }
        for text in ["", "MemTotal:", "MemTotal: many kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kibibytes(text, "MemTotal:"), None);
        }
    }
}
