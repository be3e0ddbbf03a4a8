//! Linux: reads which processors share a core, and which cores are slow, from its files.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

/// Folder in which Linux describes processors and their kinds.
const DEVICES: &str = "/sys/devices";

/// A core with less than the largest capacity divided by this is an efficiency core. With as many
/// slow cores as fast ones and parts of equal size, slower cores cost more than they add.
const SLOWEST_SHARE: u64 = 2;

/// Upper bound on the processors of any system.
const N_CPUS_MAX: usize = 1 << 16;

/// Returns the performance cores of this machine.
pub(super) fn n_performance_cores() -> Option<NonZeroUsize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    n_described(Path::new(DEVICES), &status)
}

/// Counts the fast cores described in `devices`, within the affinity mask in `status`.
fn n_described(devices: &Path, status: &str) -> Option<NonZeroUsize> {
    let cpus = devices.join("system/cpu");
    let mut allowed = list_of(&cpus.join("online"))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    if let Some(mask) = mask.and_then(parse_list) {
        allowed.retain(|cpu| mask.contains(cpu));
    }
    let fast = fast_of(devices, &allowed);
    let siblings = |cpu: &usize| {
        let path = cpus.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        list_of(&path).unwrap_or_else(|| BTreeSet::from([*cpu]))
    };
    let cores: BTreeSet<_> = fast.iter().map(siblings).collect();
    NonZeroUsize::new(cores.len())
}

/// Removes efficiency cores; keeps all if no other core is allowed.
fn fast_of(devices: &Path, allowed: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut fast = allowed.clone();
    if let Some(performance) = list_of(&devices.join("cpu_core/cpus")) {
        fast.retain(|cpu| performance.contains(cpu));
    } else {
        let capacity = |cpu: &usize| {
            let path = devices.join(format!("system/cpu/cpu{cpu}/cpu_capacity"));
            fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        };
        let largest = allowed.iter().filter_map(capacity).max().unwrap_or(0);
        fast.retain(|cpu| capacity(cpu).is_none_or(|it| it >= largest / SLOWEST_SHARE));
    }
    if fast.is_empty() { allowed.clone() } else { fast }
}

fn list_of(path: &Path) -> Option<BTreeSet<usize>> {
    parse_list(&fs::read_to_string(path).ok()?)
}

/// Parses a list in Linux's format: `0-3,8,10-11`.
fn parse_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= N_CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder like `/sys/devices`, removed when dropped.
    struct Devices {
        root: PathBuf,
    }

    impl Devices {
        fn new(name: &str, online: &str) -> Self {
            let root = std::env::temp_dir();
            let root = root.join(format!("moeflux-cores-{name}-{}", std::process::id()));
            let devices = Self { root };
            devices.write("system/cpu/online", online);
            devices
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// Adds cores with two threads each: `first` and `first + distance`.
        fn pairs(&self, firsts: std::ops::Range<usize>, distance: usize) {
            for first in firsts {
                for cpu in [first, first + distance] {
                    let path = format!("system/cpu/cpu{cpu}/topology/thread_siblings_list");
                    self.write(&path, &format!("{first},{}", first + distance));
                }
            }
        }

        fn singles(&self, cpus: std::ops::Range<usize>, capacity: Option<u64>) {
            for cpu in cpus {
                let cpu_folder = format!("system/cpu/cpu{cpu}");
                let siblings = format!("{cpu_folder}/topology/thread_siblings_list");
                self.write(&siblings, &cpu.to_string());
                if let Some(capacity) = capacity {
                    self.write(&format!("{cpu_folder}/cpu_capacity"), &capacity.to_string());
                }
            }
        }

        #[track_caller]
        fn check(&self, mask: &str, expected: Option<usize>) {
            let status = format!("Name:\tx\nCpus_allowed_list:\t{mask}\n");
            let found = n_described(&self.root, &status);
            assert_eq!(found.map(NonZeroUsize::get), expected, "mask {mask:?}");
        }
    }

    impl Drop for Devices {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.root).unwrap();
        }
    }

    #[test]
    fn two_threads_of_a_core_count_once() {
        let amd = Devices::new("smt", "0-31");
        amd.pairs(0..16, 16);
        amd.check("0-31", Some(16));
        amd.check("0-7,16-23", Some(8));
        amd.check("0-3", Some(4));
        amd.check("5,21", Some(1));
    }

    #[test]
    fn efficiency_cores_are_left_out() {
        let intel = Devices::new("hybrid", "0-19");
        for first in (0..8).step_by(2) {
            intel.pairs(first..first + 1, 1);
        }
        intel.singles(8..20, None);
        intel.write("cpu_core/cpus", "0-7");
        intel.write("cpu_atom/cpus", "8-19");
        intel.check("0-19", Some(4));
        intel.check("6-9", Some(1));
        // Better than no core.
        intel.check("8-11", Some(4));
    }

    #[test]
    fn small_cores_are_left_out_by_their_capacity() {
        let arm = Devices::new("big-little", "0-7");
        arm.singles(0..4, Some(325));
        arm.singles(4..7, Some(871));
        arm.singles(7..8, Some(1024));
        arm.check("0-7", Some(4));
        arm.check("0-4", Some(1));
        arm.check("0-3", Some(4));
    }

    #[test]
    fn missing_descriptions_change_nothing() {
        let plain = Devices::new("plain", "0-3");
        plain.check("0-3", Some(4));
        plain.check("1,3", Some(2));
        plain.check("all", Some(4));
        plain.check("9", None);
        assert_eq!(n_described(Path::new("/nonexistent"), ""), None);
    }

    #[test]
    fn lists_are_read_as_linux_writes_them() {
        let list = |text: &str| parse_list(text).map(Vec::from_iter);
        assert_eq!(list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        for wrong in ["", "a", "1-", "-1", "0-99999999999", "0-65536"] {
            assert_eq!(list(wrong), None, "{wrong:?}");
        }
    }
}
