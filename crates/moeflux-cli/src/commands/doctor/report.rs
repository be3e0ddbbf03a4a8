//! The doctor's findings, as JSON and as a verdict.
//!
//! **Invariant:** a warning names its subject and a remedy; values in order are not mentioned.

use std::path::PathBuf;

use moeflux::ByteCount;
use moeflux_gpu::adapter::AdapterFacts;
use moeflux_io::Caching;
use serde_json::{Value, json};

use super::deep::DeepReport;
use super::drive::{AccessMethod, DEPTH_ENOUGH, DEPTHS, DriveRates};
use super::exchanges::Exchanges;
use super::gpu;
use super::system::{LockLimit, System};
use crate::commands::plan::advice::first_tokens;
use crate::commands::plan::forecast::{ExpertLocations, Forecast};
use crate::commands::plan::report::forecast_json;
use crate::system::compute_profile::ComputeProfile;
use crate::system::measurements::MeasuredCard;
use crate::system::volume::Volume;

/// Below this rate, every miss is slow.
const SLOW_BYTES_PER_S: f64 = 1e9;

/// No rotating drive reaches this rate.
const TURNING_BYTES_PER_S: f64 = 0.4e9;

/// With less memory, hardly any model runs at a useful speed.
const LITTLE_MEMORY_BYTES: u64 = 4 << 30;

/// Registered slot memory counts as locked: with a lower limit, only a few slots are registered.
const LOCK_BYTES_MIN: u64 = 1 << 30;

/// An access method is faster only if it wins by more than a tenth, since a drive's figures vary.
const CLEARLY: f64 = 1.1;

/// A model in the folder.
#[derive(Clone, Debug)]
pub(super) struct ModelHere {
    pub(super) n_experts: u64,
    /// The forecast for this machine, or the least memory that the model needs.
    pub(super) expected: Result<Forecast, u64>,
}

/// The speed of the machine, or why it is unknown; `None` if it was not requested or there is no
/// such device.
#[derive(Debug, Default)]
pub(super) struct Trials {
    pub(super) cpu: Option<Result<ComputeProfile, String>>,
    pub(super) card: Option<Result<MeasuredCard, String>>,
}

/// Which of the figures `moeflux plan` is to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeptFigures {
    /// All of them.
    Good,
    /// All of them as requested, although other programs used the machine.
    Doubtful(String),
    /// None, because other programs used the machine.
    Nothing(String),
}

/// All findings of the doctor.
#[derive(Debug)]
pub(super) struct DoctorReport {
    pub(super) dir: PathBuf,
    pub(super) system: System,
    /// In the order of `--gpu`.
    pub(super) gpus: Vec<AdapterFacts>,
    pub(super) memory_bytes_per_s: Option<f64>,
    pub(super) trials: Trials,
    pub(super) volume: Volume,
    /// The drive's figures, or why there are none.
    pub(super) drive_rates: Result<DriveRates, String>,
    pub(super) kept: KeptFigures,
    /// The model, or a sentence on why it cannot be run; `None` if there is none.
    pub(super) model: Option<Result<ModelHere, String>>,
    pub(super) deep: Option<DeepReport>,
    /// Exchanges with other ranks.
    pub(super) exchanges: Option<Exchanges>,
}

impl DoctorReport {
    /// Explains the figures.
    pub(super) fn verdict(&self) -> Vec<String> {
        let mut verdict = Vec::new();
        if let Ok(drive_rates) = &self.drive_rates {
            verdict.extend(drive_verdict(drive_rates));
        }
        match &self.model {
            Some(Ok(model)) => verdict.push(self.model_verdict(model)),
            Some(Err(problem)) => verdict.push(problem.clone()),
            None => {}
        }
        verdict.extend(self.exchanges.as_ref().map(Exchanges::verdict));
        verdict
    }

    fn model_verdict(&self, model: &ModelHere) -> String {
        let dir = self.dir.display();
        let more = format!("`moeflux plan {dir}` shows details");
        match &model.expected {
            Ok(forecast) => {
                let (speed, bound) = (first_tokens(forecast), forecast.answer.low.bound.name());
                let experts = experts(&forecast.placement, model.n_experts);
                format!("the model here: {speed}, bound by the {bound}, with {experts}; {more}")
            }
            Err(least_bytes) => {
                let least = ByteCount(*least_bytes).rounded();
                format!("the model here needs at least {least} of memory; {more}")
            }
        }
    }

    /// Lists the findings that need attention.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.system_warnings();
        match &self.drive_rates {
            Ok(drive_rates) => warnings.extend(self.drive_warnings(drive_rates)),
            Err(problem) => warnings.push(format!("the drive was not measured: {problem}")),
        }
        let problems = [("CPU", cpu_problem(&self.trials)), ("GPU", card_problem(&self.trials))];
        for (what, problem) in problems {
            warnings.extend(problem.map(|it| format!("the {what} was not measured: {it}")));
        }
        warnings
    }

    fn system_warnings(&self) -> Vec<String> {
        let system = &self.system;
        let mut warnings = Vec::new();
        match &self.kept {
            KeptFigures::Good => {}
            KeptFigures::Doubtful(busy) => warnings.push(format!(
                "the machine was busy ({busy}): these figures are too low; `moeflux plan` uses \
                 them, as --even-if-busy requests"
            )),
            KeptFigures::Nothing(busy) => warnings.push(format!(
                "the machine was busy ({busy}): these figures are too low, so `moeflux plan` does \
                 not use them; measure again when it is idle (--even-if-busy keeps them)"
            )),
        }
        if system.kernels == "scalar" {
            warnings.push(
                "this CPU has no vector instructions that moeflux supports: computing is slow"
                    .to_owned(),
            );
        }
        if system.huge_pages.transparent.as_deref() == Some("never") {
            warnings.push(
                "transparent huge pages are off, which makes reading weights slower: write \
                 `madvise` to /sys/kernel/mm/transparent_hugepage/enabled"
                    .to_owned(),
            );
        }
        // Only Linux is expected to have one.
        let is_linux = cfg!(target_os = "linux");
        if let Some(problem) = system.ring_problem.as_ref().filter(|_| is_linux) {
            warnings.push(format!("{problem}; reading with threads instead"));
        }
        let limit = match system.lock_limit {
            Some(LockLimit::Bytes(limit)) if !system.is_root => limit,
            _ => u64::MAX,
        };
        if limit < LOCK_BYTES_MIN && system.ring_problem.is_none() {
            warnings.push(format!(
                "only {} may be locked, so few buffers can be registered with io_uring: raise \
                 `memlock` in /etc/security/limits.conf (`ulimit -l`)",
                ByteCount(limit).rounded()
            ));
        }
        if let Some(available) = system.available_bytes.filter(|it| *it < LITTLE_MEMORY_BYTES) {
            let group = system.group.as_ref().map_or(String::new(), |group| {
                let limit = ByteCount(group.limit_bytes).rounded();
                format!(" (the control group {} allows {limit})", group.folder.display())
            });
            warnings.push(format!(
                "only {} of memory are available{group}: close other programs",
                ByteCount(available).rounded()
            ));
        }
        warnings
    }

    fn drive_warnings(&self, drive_rates: &DriveRates) -> Vec<String> {
        let mut warnings = Vec::new();
        let mount = self.volume.mount.as_ref();
        let kind = mount.map_or("?", |mount| mount.kind.as_str());
        if self.volume.is_network() {
            warnings.push(format!(
                "{kind} is read over a network or through a program: copy the model to a drive of \
                 this machine"
            ));
        } else if self.volume.is_memory() {
            warnings.push(format!(
                "{kind} is in memory: these figures are not those of a drive, and its files take \
                 memory that experts could use"
            ));
        } else if drive_rates.direct_block_bytes.is_none() && cfg!(target_os = "linux") {
            warnings.push(format!(
                "{kind} does not support direct reads: experts are read through the page cache, \
                 which costs memory and time"
            ));
        }
        let rate = drive_rates.best().map_or(0.0, AccessMethod::rate);
        // Virtual drives also report that they rotate.
        let turns = self.volume.device.as_ref().is_some_and(|it| it.is_rotational == Some(true));
        let gbps = rate / 1e9;
        if turns && rate < TURNING_BYTES_PER_S {
            warnings.push(format!(
                "{gbps:.2} GB/s, and the drive reports that it rotates: experts are read in \
                 random order, so keep models on a solid-state drive"
            ));
        } else if rate < SLOW_BYTES_PER_S && !self.volume.is_memory() {
            warnings.push(format!(
                "{gbps:.2} GB/s is slow for a drive: keep models on an NVMe drive, which reads 3 \
                 to 14"
            ));
        }
        warnings
    }

    /// Returns the findings as JSON.
    pub(super) fn json(&self) -> Value {
        let mount = self.volume.mount.as_ref();
        let device = self.volume.device.as_ref();
        let cpu = self.trials.cpu.as_ref().and_then(|it| it.as_ref().ok());
        let card = self.trials.card.as_ref().and_then(|it| it.as_ref().ok());
        let model = self.model.as_ref().map(|model| match model {
            Ok(model) => json!({
                "least_bytes": model.expected.as_ref().err(),
                "forecast": model.expected.as_ref().map_or(Value::Null, |forecast| {
                    forecast_json(forecast, model.n_experts)
                }),
            }),
            Err(problem) => json!({"problem": problem}),
        });
        json!({
            "dir": self.dir.display().to_string(),
            "system": self.system.json(),
            "gpus": self.gpus.iter().map(gpu::json).collect::<Vec<_>>(),
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "cpu_pace": cpu.map(ComputeProfile::json),
            "gpu_pace": card.map(|it| it.computing.profile.json()),
            "gpu_measured": card.map(|it| it.computing.name.as_str()),
            "file_system": mount.map(|it| it.kind.as_str()),
            "mount_point": mount.map(|it| it.point.display().to_string()),
            "mount_source": mount.map(|it| it.source.as_str()),
            "device": device.map(|it| json!({
                "name": it.name,
                "model": it.model,
                "logical_block_bytes": it.logical_block_bytes,
                "physical_block_bytes": it.physical_block_bytes,
                "read_ahead_bytes": it.read_ahead_bytes,
                "is_rotational": it.is_rotational,
            })),
            "drive": self.drive_rates.as_ref().ok().map(DriveRates::json),
            "drive_problem": self.drive_rates.as_ref().err(),
            "model": model,
            "deep": self.deep.as_ref().map(DeepReport::json),
            "ranks": self.exchanges.as_ref().map(Exchanges::json),
            "busy": match &self.kept {
                KeptFigures::Good => None,
                KeptFigures::Doubtful(busy) | KeptFigures::Nothing(busy) => Some(busy),
            },
            "is_kept": !matches!(self.kept, KeptFigures::Nothing(_)),
            "verdict": self.verdict(),
            "warnings": self.warnings(),
        })
    }
}

/// Describes the placement of the experts, in shares.
fn experts(placement: &ExpertLocations, n_experts: u64) -> String {
    let percent = |n: u64| {
        let share = crate::model::needs::float(n) / crate::model::needs::float(n_experts.max(1));
        format!("{:.0} % of its experts", 100.0 * share)
    };
    let memory = format!("{} in the memory that is free now", percent(placement.in_memory));
    match (placement.on_card, placement.in_memory) {
        (0, _) => memory,
        (n, 0) => format!("{} on the GPU", percent(n)),
        (n, _) => format!("{} on the GPU and {memory}", percent(n)),
    }
}

fn cpu_problem(trials: &Trials) -> Option<&String> {
    trials.cpu.as_ref()?.as_ref().err()
}

fn card_problem(trials: &Trials) -> Option<&String> {
    trials.card.as_ref()?.as_ref().err()
}

fn drive_verdict(drive_rates: &DriveRates) -> Option<String> {
    let best = drive_rates.best().filter(|method| method.rate() > 0.0)?;
    let gbps = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
    let [.., deepest] = DEPTHS;
    let enough =
        format!("{}, the median of {DEPTH_ENOUGH} to {deepest} in flight", gbps(best.rate()));
    let methods = (drive_rates.method(Caching::Direct), drive_rates.method(Caching::PageCache));
    let (Some(direct), Some(cached)) = methods else {
        return Some(format!("the drive reads {enough}, through the page cache"));
    };
    let ratio = direct.rate() / cached.rate().max(1.0);
    Some(if ratio > CLEARLY {
        format!("direct reads are {ratio:.1} times as fast as the page cache: {enough}")
    } else if ratio * CLEARLY < 1.0 {
        let times = 1.0 / ratio;
        format!("the page cache is {times:.1} times as fast as direct reads: {enough}")
    } else {
        format!("direct reads and the page cache are equally fast here: {enough}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::drive::ProbedFiles;
    use crate::commands::doctor::system::HugePages;
    use crate::system::volume::BlockDevice;
    use moeflux_io::Mount;

    fn drive_rates(direct: Option<f64>, cached: f64) -> DriveRates {
        let method = |caching, drive, rate: f64| AccessMethod {
            caching,
            drive,
            bytes_per_s: [0.5, 0.9, 0.96, 1.1, 1.0, 1.0].map(|it| it * rate).to_vec(),
        };
        let direct = direct.map(|best| method(Caching::Direct, "io_uring", best));
        let cached = method(Caching::PageCache, "threads", cached);
        DriveRates {
            probed: ProbedFiles::Temporary(1 << 30),
            direct_block_bytes: direct.is_some().then_some(512),
            methods: direct.into_iter().chain([cached]).collect(),
            is_repeated: false,
        }
    }

    fn report(drive_rates: DriveRates, kind: &str) -> DoctorReport {
        let mut system = System::here();
        system.kernels = "avx2";
        system.huge_pages = HugePages::default();
        system.available_bytes = Some(16 << 30);
        system.lock_limit = Some(LockLimit::Unlimited);
        system.load = Some(0.1);
        system.ring_problem = None;
        let mount = Mount {
            device: "1:2".into(),
            root: "/".into(),
            point: "/data".into(),
            kind: kind.into(),
            source: "/dev/x".into(),
            options: "rw".into(),
        };
        let volume = Volume { mount: Some(mount), device: None };
        DoctorReport {
            dir: "/data".into(),
            system,
            gpus: Vec::new(),
            memory_bytes_per_s: Some(3e10),
            trials: Trials::default(),
            volume,
            drive_rates: Ok(drive_rates),
            kept: KeptFigures::Good,
            model: None,
            deep: None,
            exchanges: None,
        }
    }

    #[test]
    fn the_faster_way_is_named_only_if_it_is_clear() {
        for (direct, cached, words) in [
            (Some(4e9), 2e9, "direct reads are 2.0 times as fast as the page cache: 4.00 GB/s"),
            (Some(2e9), 4e9, "the page cache is 2.0 times as fast as direct reads: 4.00 GB/s"),
            (Some(2e9), 2.1e9, "equally fast here: 2.10 GB/s, the median of 4 to 32 in flight"),
            (None, 2e9, "reads 2.00 GB/s, the median of 4 to 32 in flight, through the page cache"),
        ] {
            let verdict = report(drive_rates(direct, cached), "ext4").verdict();
            assert_eq!(verdict.len(), 1);
            assert!(verdict[0].contains(words), "{verdict:?}");
        }
    }

    #[track_caller]
    fn check_warnings(report: &DoctorReport, expected: &[&str]) {
        let warnings = report.warnings();
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, words) in warnings.iter().zip(expected) {
            assert!(warning.contains(words), "`{words}` is not in {warning}");
            assert!(!warning.contains('\n'));
        }
    }

    #[test]
    fn a_machine_in_order_has_no_warnings() {
        check_warnings(&report(drive_rates(Some(4e9), 2e9), "ext4"), &[]);
    }

    #[test]
    fn each_trouble_has_its_line() {
        let mut ill = report(drive_rates(Some(0.3e9), 0.2e9), "nfs4");
        ill.kept = KeptFigures::Nothing("load 1000.0 on 2 cores".into());
        ill.system.kernels = "scalar";
        ill.system.huge_pages.transparent = Some("never".into());
        ill.system.ring_problem = Some("io_uring is forbidden here".into());
        ill.system.available_bytes = Some(1 << 30);
        ill.system.group = None;
        let turning = BlockDevice { is_rotational: Some(true), ..BlockDevice::default() };
        ill.volume.device = Some(turning);
        let words = ["busy", "vector", "madvise", "with threads", "1.07 GB", "network", "rotates"];
        let is_of_system = |it: &&str| cfg!(target_os = "linux") || *it != "with threads";
        let words: Vec<&str> = words.into_iter().filter(is_of_system).collect();
        check_warnings(&ill, &words);
        check_warnings(&report(drive_rates(Some(0.5e9), 0.2e9), "ext4"), &["0.50 GB/s is slow"]);
        let mut busy = report(drive_rates(Some(4e9), 2e9), "ext4");
        busy.kept = KeptFigures::Doubtful("load 9.0 on 2 cores".into());
        check_warnings(&busy, &["uses them, as --even-if-busy requests"]);

        let mut locked = report(drive_rates(Some(4e9), 2e9), "ext4");
        locked.system.lock_limit = Some(LockLimit::Bytes(8 << 20));
        locked.system.is_root = false;
        check_warnings(&locked, &["memlock"]);
        locked.system.is_root = true;
        check_warnings(&locked, &[]);

        check_warnings(&report(drive_rates(None, 2e9), "tmpfs"), &["in memory"]);
        let unmeasured = DoctorReport {
            drive_rates: Err("no room".into()),
            ..report(drive_rates(None, 2e9), "ext4")
        };
        check_warnings(&unmeasured, &["was not measured: no room"]);
        assert_eq!(unmeasured.json()["drive_problem"], "no room");
    }
}
