//! The features of the CPU, the memory and the kernel that matter for models.
//!
//! **Invariant:** reads small text files and opens one ring. Values that the system does not report
//! are missing, whatever the files contain, and nothing fails.

use std::fs;

use moeflux_io::{ControlGroup, tightest_control_group};
use serde_json::{Value, json};

use crate::system::machine::{Machine, kibibytes};

/// CPU features that kernels use or may use later, as named by Linux.
const FEATURES: [&str; 20] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512_vnni",
    "avx512vbmi",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "sve",
];

/// Queue length of the ring that is opened as a test.
#[cfg(target_os = "linux")]
const N_IN_RING: usize = 8;

/// Pages larger than the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HugePages {
    /// `always`, `madvise` or `never`.
    pub(super) transparent: Option<String>,
    /// Number of reserved pages that are free.
    pub(super) n_free: Option<u64>,
    pub(super) page_bytes: Option<u64>,
}

/// Upper bound on locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockLimit {
    Bytes(u64),
    Unlimited,
}

/// The known facts about the system.
#[derive(Clone, Debug)]
pub(super) struct System {
    pub(super) machine: Machine,
    pub(super) features: Vec<&'static str>,
    pub(super) kernels: &'static str,
    pub(super) kernels_available: Vec<&'static str>,
    pub(super) available_bytes: Option<u64>,
    /// Runnable threads in the last minute, before any measurement.
    pub(super) load: Option<f64>,
    pub(super) group: Option<ControlGroup>,
    pub(super) huge_pages: HugePages,
    pub(super) lock_limit: Option<LockLimit>,
    /// The limit on locked memory does not apply to root.
    pub(super) is_root: bool,
    /// Why reads cannot be queued in the kernel; `None` if they can.
    pub(super) ring_problem: Option<String>,
}

impl System {
    /// Examines this system.
    pub(super) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            machine: Machine::here(),
            features: features(&read("/proc/cpuinfo")),
            kernels: moeflux_kernels::best().name(),
            kernels_available: moeflux_kernels::available().iter().map(|it| it.name()).collect(),
            available_bytes: moeflux_io::available_memory_bytes(),
            load: load(&read("/proc/loadavg")),
            group: tightest_control_group(),
            huge_pages: huge_pages(
                &read("/sys/kernel/mm/transparent_hugepage/enabled"),
                &read("/proc/meminfo"),
            ),
            lock_limit: lock_limit(&read("/proc/self/limits")),
            is_root: is_root(&read("/proc/self/status")),
            ring_problem: ring_problem(),
        }
    }

    /// Returns the facts as JSON.
    pub(super) fn json(&self) -> Value {
        let group = self.group.as_ref().map(|group| {
            json!({
                "version": group.version,
                "folder": group.folder.display().to_string(),
                "limit_bytes": group.limit_bytes,
                "used_bytes": group.used_bytes,
            })
        });
        json!({
            "cpu": self.machine.cpu(),
            "n_cores": self.machine.n_cores(),
            "features": self.features,
            "kernels": self.kernels,
            "kernels_available": self.kernels_available,
            "memory_bytes": self.machine.memory_bytes(),
            "available_bytes": self.available_bytes,
            "load": self.load,
            "control_group": group,
            "transparent_huge_pages": self.huge_pages.transparent,
            "n_free_huge_pages": self.huge_pages.n_free,
            "huge_page_bytes": self.huge_pages.page_bytes,
            "lock_limit_bytes": match self.lock_limit {
                Some(LockLimit::Bytes(n_bytes)) => Some(n_bytes),
                _ => None,
            },
            "is_lock_unlimited": self.lock_limit == Some(LockLimit::Unlimited),
            "io_uring_works": self.ring_problem.is_none(),
            "io_uring_problem": self.ring_problem,
        })
    }
}

/// Returns the known features of the first core.
fn features(cpuinfo: &str) -> Vec<&'static str> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut named = lines.map(|(key, words)| (key.trim(), words));
    let words = named.find(|(key, _)| matches!(*key, "flags" | "Features"));
    let words: Vec<&str> = words.map_or("", |(_, words)| words).split_whitespace().collect();
    FEATURES.into_iter().filter(|feature| words.contains(feature)).collect()
}

fn huge_pages(enabled: &str, meminfo: &str) -> HugePages {
    let chosen = enabled.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let n_free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    HugePages {
        transparent: chosen.map(|(word, _)| word.to_owned()),
        n_free: n_free.and_then(|it| it.trim().parse().ok()),
        page_bytes: kibibytes(meminfo, "Hugepagesize:"),
    }
}

/// Parses `0.42 0.30 0.20 1/234 5678`; the first number is for the last minute.
fn load(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite())
}

/// Parses `Max locked memory  8388608  8388608  bytes`; the first number is the soft limit, which
/// applies.
fn lock_limit(limits: &str) -> Option<LockLimit> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(LockLimit::Unlimited),
        number => number.parse().ok().map(LockLimit::Bytes),
    }
}

/// Parses `Uid:  0  0  0  0`; the second number is the effective user.
fn is_root(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|line| line.split_whitespace().nth(1)) == Some("0")
}

#[cfg(target_os = "linux")]
fn ring_problem() -> Option<String> {
    let ring = moeflux_io::UringDrive::new(Vec::new(), N_IN_RING);
    ring.err().map(|refused| refused.to_string())
}

#[cfg(not(target_os = "linux"))]
fn ring_problem() -> Option<String> {
    Some("not on this system".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_linux_are_parsed() {
        let cpuinfo = "processor : 0\nflags\t\t: fpu avx2 fma avx512f sse\nflags : amx_int8\n";
        assert_eq!(features(cpuinfo), ["avx2", "fma", "avx512f"]);
        assert_eq!(features("Features\t: fp asimd asimddp\n"), ["asimd", "asimddp"]);
        let meminfo = "HugePages_Free:       12\nHugepagesize:       2048 kB\n";
        let expected = HugePages {
            transparent: Some("madvise".into()),
            n_free: Some(12),
            page_bytes: Some(2 << 20),
        };
        assert_eq!(huge_pages("always [madvise] never\n", meminfo), expected);
        let limits =
            |what: &str| format!("Max cpu time  1 1 s\nMax locked memory   {what}  9 bytes\n");
        assert_eq!(lock_limit(&limits("8388608")), Some(LockLimit::Bytes(8 << 20)));
        assert_eq!(lock_limit(&limits("unlimited")), Some(LockLimit::Unlimited));
        assert!(is_root("Name: x\nUid:\t0\t0\t0\t0\n"));
        assert!(!is_root("Uid:\t1000\t1000\t0\t0\n"));
    }

    #[test]
    fn odd_contents_are_nothing() {
        for text in ["", ":", "flags", "[", "]", "[]x", "Uid:", "Max locked memory", "\u{0}\u{7f}"]
        {
            assert!(features(text).is_empty(), "{text:?}");
            assert_eq!(huge_pages("", text), HugePages::default());
            assert_eq!(lock_limit(text), None);
            assert!(!is_root(text));
        }
        assert_eq!(load("4.26 3.55 2.32 5/200 77\n"), Some(4.26));
        assert_eq!((load(""), load("busy"), load("inf 1")), (None, None, None));
        assert_eq!(lock_limit("Max locked memory many"), None);
        assert_eq!(huge_pages("always never", "HugePages_Free: -1"), HugePages::default());
    }

    #[test]
    fn this_machine_has_kernels() {
        let system = System::here();
        assert!(system.kernels_available.contains(&system.kernels));
        assert_eq!(system.json()["kernels"], system.kernels);
    }
}
