//! Metrics of this process from the operating system, in the text format of Prometheus.
//!
//! **Invariant:** values that cannot be read are omitted; without `/proc`, all are. This module
//! knows nothing of requests.

use std::fmt::Write;
use std::fs;

use moeflux::stats::process_memory_bytes;

/// The kernel's unit of time, on every architecture that Linux supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the `process_*` metrics, each preceded by a line of help and one with its type.
pub(crate) fn text() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let n_open = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
    let status = read("/proc/self/status");
    written(&[
        ("cpu_seconds_total", "CPU time of this process.", cpu(&read("/proc/self/stat"))),
        ("resident_memory_bytes", "Memory of this process.", memory()),
        ("virtual_memory_bytes", "Virtual memory of this process.", bytes(&status, "VmSize:")),
        // One of them is the directory that is read here.
        ("open_fds", "Open files and sockets.", n_open.map(|it| float(it, 1))),
        ("max_fds", "Upper bound on open files and sockets.", max_fds(&read("/proc/self/limits"))),
        (
            "start_time_seconds",
            "Start time of this process, in seconds since 1970.",
            start(&read("/proc/self/stat"), &read("/proc/stat")),
        ),
    ])
}

fn written(figures: &[(&str, &str, Option<f64>)]) -> String {
    let mut text = String::new();
    for (name, help, value) in figures {
        let Some(value) = value else { continue };
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        writeln!(text, "# HELP process_{name} {help}").expect("a text takes every line");
        writeln!(text, "# TYPE process_{name} {kind}").expect("a text takes every line");
        writeln!(text, "process_{name} {value}").expect("a text takes every line");
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "few files are open")]
fn float(n: usize, n_own: usize) -> f64 {
    n.saturating_sub(n_own) as f64
}

/// Returns a field of `stat`, counted from the one after the name, because the name may contain
/// blanks.
fn value(stat: &str, place: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(place)?.parse().ok()
}

fn cpu(stat: &str) -> Option<f64> {
    Some((value(stat, 11)? + value(stat, 12)?) / TICKS_PER_SECOND)
}

fn start(stat: &str, system: &str) -> Option<f64> {
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted.trim().parse::<f64>().ok()? + value(stat, 19)? / TICKS_PER_SECOND)
}

fn bytes(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[expect(clippy::cast_precision_loss, reason = "memory has far fewer bytes than 2^53")]
fn memory() -> Option<f64> {
    process_memory_bytes().map(|bytes| bytes as f64)
}

fn max_fds(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_files() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 250 50 0 0 20 0 9 0 12345 1 2";
        assert_eq!(cpu(stat), Some(3.0));
        assert_eq!(start(stat, "cpu 1 2\nbtime 1000\n"), Some(1123.45));
        assert_eq!(bytes("VmSize:\t  8 kB\nVmRSS:\t  4 kB\n", "VmRSS:"), Some(4096.0));
        assert_eq!(max_fds("Max open files            1024    4096    files\n"), Some(1024.0));
        for wrong in ["", "7 (a", "7 (a) S 1", "Max open files unlimited", "VmRSS:"] {
            let found = [cpu(wrong), start(wrong, wrong), bytes(wrong, "VmRSS:"), max_fds(wrong)];
            assert_eq!(found, [None; 4], "{wrong}");
        }
    }

    #[test]
    fn unknown_values_are_left_out() {
        let text =
            written(&[("a_total", "A.", Some(2.5)), ("b", "B.", None), ("c", "C.", Some(7.0))]);
        let expected = "# HELP process_a_total A.\n# TYPE process_a_total counter\n\
                        process_a_total 2.5\n# HELP process_c C.\n# TYPE process_c gauge\n\
                        process_c 7\n";
        assert_eq!(text, expected);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_all_of_them() {
        let text = text();
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 6, "{text}");
    }
}
