//! What the machine gives: as told, as `moeflux doctor` measured it, or assumed.
//!
//! **Invariant:** a figure never stands without where it is from. Nothing is measured here: a plan
//! answers at once.

use moeflux::ByteCount;

use super::forecast::Gives;
use crate::machine;
use crate::measured::{Measured, Rate, ago};
use crate::needs::float;
use crate::size::binary;

/// A drive of which nothing is known: that of a usual laptop.
const DRIVE_GBPS: f64 = 3.0;

/// Memory of which nothing is known: two channels of DDR5-5600 give 60 to 70 % of 90 GB/s.
const MEMORY_GBPS: f64 = 60.0;

/// Operations per second and core, in 10^9, that reading a prompt of a 2 GB model reached with
/// these kernels on two cores of a server (`benches/record/cpu.md`), or a guess from their width.
const GOPS_PER_CORE: [(&str, f64); 7] = [
    ("amx", 430.0),
    ("avx512vnni", 200.0),
    ("avx512", 165.0),
    ("avxvnni", 165.0),
    ("avx2", 165.0),
    ("i8mm", 150.0),
    ("dotprod", 80.0),
];

/// Scalar code, or NEON alone.
const GOPS_PER_CORE_OTHERWISE: f64 = 20.0;

/// What the user says of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) ram_bytes: Option<u64>,
    pub(crate) drive_gbps: Option<f64>,
    pub(crate) memory_gbps: Option<f64>,
}

/// A figure and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) source: String,
}

/// The machine of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanMachine {
    /// None where the system does not say.
    pub(crate) budget: Option<(u64, String)>,
    pub(crate) drive: Figure,
    pub(crate) memory: Figure,
    pub(crate) compute: Figure,
}

impl PlanMachine {
    /// This machine, but for what is told; `drive_key` names the drive of a model's folder.
    pub(crate) fn here(told: &Told, measured: &Measured, drive_key: Option<&str>) -> Self {
        let available = || moeflux_io::available_memory_bytes();
        let is_told = "from --ram".to_owned();
        let budget = told.ram_bytes.map(|bytes| (bytes, is_told)).or_else(|| {
            available().map(|bytes| (bytes, "available on this machine now".to_owned()))
        });
        let kernels = moeflux_kernels::best().name();
        let (value, source) = compute(kernels, float(machine::n_cores().get() as u64));
        Self {
            budget,
            drive: figure(told.drive_gbps, "--disk-gbps", measured.drive(drive_key), DRIVE_GBPS),
            memory: figure(told.memory_gbps, "--mem-gbps", measured.memory(), MEMORY_GBPS),
            compute: Figure { value, source },
        }
    }

    /// As a forecast takes it.
    pub(crate) fn gives(&self) -> Option<Gives> {
        let (budget_bytes, _) = self.budget.as_ref()?;
        Some(Gives {
            budget_bytes: *budget_bytes,
            drive_bytes_per_s: self.drive.value,
            memory_bytes_per_s: self.memory.value,
            operations_per_s: self.compute.value,
        })
    }

    /// The budget, for people.
    pub(crate) fn budget_text(&self) -> String {
        match &self.budget {
            Some((bytes, source)) => {
                format!("{} ({}), {source}", ByteCount(*bytes).rounded(), binary(*bytes))
            }
            None => "unknown: this system does not report it; give --ram SIZE".to_owned(),
        }
    }
}

fn compute(kernels: &str, n_cores: f64) -> (f64, String) {
    let known = GOPS_PER_CORE.iter().find(|(name, _)| *name == kernels);
    let gops = known.map_or(GOPS_PER_CORE_OTHERWISE, |(_, gops)| *gops);
    let source = format!("assumed: {gops} GOP/s for each of {n_cores} cores by {kernels}");
    (gops * 1e9 * n_cores, source)
}

fn figure(told: Option<f64>, option: &str, measured: Option<Rate>, assumed_gbps: f64) -> Figure {
    match (told, measured) {
        (Some(gbps), _) => Figure { value: gbps * 1e9, source: format!("from {option}") },
        (None, Some(Rate { bytes_per_s, of, age_s })) => {
            let of = if of.is_empty() { of } else { format!(" of {of}") };
            let source = format!("measured{of} by `moeflux doctor` {}", ago(age_s));
            Figure { value: bytes_per_s, source }
        }
        (None, None) => Figure {
            value: assumed_gbps * 1e9,
            source: format!("assumed: `moeflux doctor` measures it, {option} sets it"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_goes_before_measured_and_measured_before_assumed() {
        let rate = || Some(Rate { bytes_per_s: 2e9, of: "/dev/x ext4".into(), age_s: 7300 });
        let check = |figure: Figure, value: f64, words: &str| {
            assert!((figure.value - value).abs() < 1.0, "{figure:?}");
            assert_eq!(figure.source, words);
        };
        check(figure(Some(1.5), "--disk-gbps", rate(), 3.0), 1.5e9, "from --disk-gbps");
        let words = "measured of /dev/x ext4 by `moeflux doctor` 2 hours ago";
        check(figure(None, "--disk-gbps", rate(), 3.0), 2e9, words);
        let words = "assumed: `moeflux doctor` measures it, --disk-gbps sets it";
        check(figure(None, "--disk-gbps", None, 3.0), 3e9, words);
    }

    #[test]
    fn every_table_of_kernels_has_a_rate() {
        for table in moeflux_kernels::available() {
            assert!(compute(table.name(), 2.0).0 > 1e9, "{}", table.name());
        }
        assert!(compute("amx", 2.0).0 > compute("avx2", 2.0).0);
    }
}
