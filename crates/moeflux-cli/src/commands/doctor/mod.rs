//! `moeflux doctor`: measures this machine and a drive for running models, and reports problems.
//!
//! **Invariant:** nothing is written except a temporary file where there is no model to read, the
//! checksums of `--deep`, and trial models and figures in the cache folder; values that the system
//! does not report are left out. Figures of a busy machine are shown, but kept only with
//! `--even-if-busy`. A drive that cannot be measured is a warning, damage found by `--deep` a
//! failure.

pub(crate) mod exchanges;
mod checksum_file;
mod deep;
mod load_monitor;
mod gpu;
mod kernels;
mod memory;
mod products;
mod trial;
mod drive;
mod system;
mod report;
mod text;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use moeflux::provider::format::{PACK_METADATA, gguf_at};
use moeflux::provider::model::Headers;
use moeflux::provider::ranks::RankGroup;
use moeflux::{Error, Model, Result};
use moeflux_gpu::adapter::{AdapterFacts, AdapterKind, adapters, choose};

use crate::commands::plan::CONTEXT_DEFAULT;
use crate::commands::plan::machine::{MachineOverrides, PlanMachine};
use crate::commands::plan::report::{PlanQuery, PlannedModel};
use crate::commands::plan::routing::RoutingSource;
use crate::failure::CommandResult;
use crate::model;
use crate::model::hub;
use crate::options::ranges;
use crate::output::fold::point;
use crate::output::print;
use crate::output::quiet::without_noise;
use crate::system::cache;
use crate::system::interrupt::Interrupt;
use crate::system::machine;
use crate::system::measurements::Measurements;
use crate::system::volume::{self, Volume};
use deep::deep_check;
use drive::{CandidateFiles, drive_rates};
use load_monitor::{LoadMonitor, OtherLoad};
use report::{DoctorReport, KeptFigures, ModelHere, Trials};
use system::System;

/// The devices on which small random models run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrialsOf {
    /// The CPU and a GPU, if there is one
    All,
    /// The CPU
    Cpu,
    /// Nothing: `moeflux plan` keeps earlier figures, or assumes some
    None,
}

/// The arguments of `moeflux doctor`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct DoctorArgs {
    /// Folder of a model, its OWNER/NAME in the hub's cache, or any folder on the drive to measure
    /// [default: the current folder]
    #[arg(
        value_name = "DIR|FILE.gguf|OWNER/NAME[:QUANT]",
        default_value = ".",
        hide_default_value = true
    )]
    pub(crate) dir: PathBuf,
    /// Read every byte of the model in DIR and compare it with checksums. A packed model has its
    /// own; for another model, the first run writes them (XXH3-64 of each tensor, each slice of
    /// stacked experts, each 64 MiB of longer ones)
    #[arg(long)]
    pub(crate) deep: bool,
    /// File in which --deep keeps the checksums of a model that is not packed [default:
    /// DIR/moeflux-sums.json, or FILE.gguf.moeflux-sums.json next to a GGUF file]
    #[arg(long, value_name = "FILE", requires = "deep")]
    pub(crate) sums: Option<PathBuf>,
    /// Size of the temporary file that is used if DIR has no model; at most a quarter of the free
    /// space
    #[arg(long, value_name = "SIZE", value_parser = ranges::probe_size, default_value = "1G")]
    pub(crate) file_size: u64,
    /// GPU to measure: its number in the list, or part of its name [default: the first one that is
    /// not a software driver]
    #[arg(long, value_name = "NAME|INDEX")]
    pub(crate) gpu: Option<String>,
    /// Compare the results of the GPU and the CPU for layers of the model in DIR, or of three known
    /// models if DIR has none, and print all differences; measure nothing
    #[arg(long, conflicts_with_all = ["deep", "json"])]
    pub(crate) gpu_check: bool,
    /// What to measure by running small random models, which temporarily take up to 1 GB in the
    /// cache folder
    #[arg(long, value_enum, value_name = "WHAT", default_value = "all")]
    pub(crate) trials: TrialsOf,
    /// Let `moeflux plan` use these figures even if other programs used the machine meanwhile;
    /// otherwise it keeps earlier ones
    #[arg(long)]
    pub(crate) even_if_busy: bool,
    /// Forget all that was measured on this machine, and measure nothing
    #[arg(long, exclusive = true)]
    pub(crate) forget: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// What connects this process to the other ranks of an MPI launcher
    #[arg(skip)]
    pub(crate) group: Option<RankGroup>,
}

/// Examines everything and prints the report.
///
/// # Errors
///
/// Fails if the folder is unusable or the model is damaged, and with [`Error::Cancelled`].
pub(crate) fn run(args: &DoctorArgs, interrupt: &Interrupt) -> CommandResult {
    if args.forget {
        return Ok(print::line(&forget()?)?);
    }
    let found = hub::found(&args.dir)?;
    // A file in the hub's cache is a link to a file with a meaningless name, so it is not resolved.
    let dir = if found.is_file() {
        found
    } else {
        dunce::canonicalize(&found).map_err(Error::io("find", &args.dir))?
    };
    if !dir.is_dir() && !model::has_weights(&dir)? {
        return Err(Error::Input(format!(
            "{} is a file: name its folder {}",
            args.dir.display(),
            model::folder_of(&dir).display()
        ))
        .into());
    }
    if args.gpu_check {
        return kernels::check(args.gpu.as_deref(), &dir);
    }
    let report = examine(args, dir, interrupt)?;
    if args.json {
        print::line(&format!("{:#}", report.json()))?;
    } else {
        print::line(&text::render(&report))?;
    }
    let Some(deep) = &report.deep else { return Ok(()) };
    if !args.json {
        deep.damages.iter().try_for_each(|damage| print::line(&format!("damaged: {damage}")))?;
    }
    match deep.damages.len() {
        0 if args.json => Ok(()),
        0 => Ok(print::line(&point(&deep.summary()).join("\n"))?),
        n_damages => Err(Error::Input(format!(
            "{}: {n_damages} damaged: fetch or copy these files again",
            report.dir.display()
        ))
        .into()),
    }
}

/// Deletes the figures of this machine. Returns a message with their names and the file.
fn forget() -> Result<String> {
    let mut measured = Measurements::load();
    let forgotten = measured.forget();
    let file = measured.file().display().to_string();
    if forgotten.is_empty() {
        return Ok(format!("nothing to forget: {file} has no figures of this machine"));
    }
    measured.save()?;
    let mut lines = vec![format!("forgotten, in {file}:")];
    lines.extend(forgotten.iter().flat_map(|it| point(it)));
    Ok(lines.join("\n"))
}

fn examine(args: &DoctorArgs, dir: PathBuf, interrupt: &Interrupt) -> Result<DoctorReport> {
    // The other ranks measure exchanges first, too.
    let exchanges = args.group.as_ref().map(exchanges::measure).transpose()?;
    let system = System::here();
    // First, so that problems with the model or with the path for its checksums are reported at
    // once.
    let deep = match args.deep {
        true => Some(deep_check(&dir, args.sums.as_deref(), machine::n_cores().get(), interrupt)?),
        false => None,
    };
    let monitor = LoadMonitor::begin();
    let memory_bytes_per_s = memory::rate(system.machine.n_cores(), system.available_bytes);
    let drive_rates = match drive_rates(&files_at(&dir), args.file_size, interrupt) {
        Err(Error::Cancelled) => return Err(Error::Cancelled),
        other => other.map_err(|error| error.to_string()),
    };
    let monitor = monitor.part();
    let trials = trials(args, &system, interrupt)?;
    let load = system.load.map(|load| (load, system.machine.n_cores()));
    let other_load = OtherLoad { share: monitor.part().share_max(), load };
    let kept = match (other_load.busy(), args.even_if_busy) {
        (None, _) => KeptFigures::Good,
        (Some(busy), true) => KeptFigures::Doubtful(busy),
        (Some(busy), false) => KeptFigures::Nothing(busy),
    };
    let mut report = DoctorReport {
        volume: Volume::of(&dir),
        gpus: gpu::here(),
        dir,
        system,
        memory_bytes_per_s,
        trials,
        drive_rates,
        kept,
        model: None,
        deep,
        exchanges,
    };
    let measured = remember(&report);
    report.model = model_here(&report.dir, &measured);
    Ok(report)
}

/// Keeps the figures for `plan`, unless other programs used the machine. Returns all figures known
/// then.
fn remember(report: &DoctorReport) -> Measurements {
    let mut measured = Measurements::load();
    match report.kept {
        KeptFigures::Good => {}
        KeptFigures::Doubtful(_) => measured.mark_doubtful(),
        KeptFigures::Nothing(_) => return measured,
    }
    if let Some(rate) = report.memory_bytes_per_s {
        measured.set_memory(rate);
    }
    let best =
        report.drive_rates.as_ref().ok().and_then(|it| it.best()).map(drive::AccessMethod::rate);
    if let Some(rate) = best.filter(|rate| *rate > 0.0) {
        measured.set_drive(&volume::key(&report.dir), rate);
    }
    if let Some(Ok(profile)) = &report.trials.cpu {
        measured.set_cpu(report.system.kernels, profile);
    }
    if let Some(Ok(card)) = &report.trials.card {
        measured.set_card(card);
    }
    if let Err(error) = measured.save() {
        print::stderr_line(&format!("note: cannot save these figures for `moeflux plan`: {error}"));
    }
    measured
}

/// Returns the files of the model at a path, or the weight files in a folder without a model.
fn files_at(path: &Path) -> CandidateFiles {
    let folder = if path.is_dir() { path } else { model::folder_of(path) };
    let own = Model::open(path).ok().map(|model| {
        let files = &model.checkpoint().files;
        files.iter().map(|file| (file.path.clone(), file.len_bytes)).collect()
    });
    CandidateFiles { folder: folder.to_owned(), of_model: own }
}

/// Measures the CPU, and a GPU if there is one. Failures are part of the result.
fn trials(args: &DoctorArgs, system: &System, interrupt: &Interrupt) -> Result<Trials> {
    if args.trials == TrialsOf::None {
        return Ok(Trials::default());
    }
    trial::remove_old(&cache::folder());
    let reported = |result: Result<_>| match result {
        Err(Error::Cancelled) => Err(Error::Cancelled),
        other => Ok(other.map_err(|error| error.to_string())),
    };
    let cpu = reported(trial::of_cpu(system.available_bytes, interrupt))?;
    let adapter = match &args.gpu {
        _ if args.trials == TrialsOf::Cpu => None,
        Some(_) => Some(without_noise(|| choose(args.gpu.as_deref()))?),
        None => {
            let mut all = without_noise(adapters).into_iter();
            let is_usual = |it: &AdapterFacts| {
                it.kind != AdapterKind::Software && !it.is_second_choice() && it.lacks.is_none()
            };
            all.find(|it| is_usual(it.facts()))
        }
    };
    let card = match adapter {
        Some(adapter) => match trial::of_gpu(&adapter, system.available_bytes, interrupt) {
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            other => Some(other.map_err(|error| error.to_string())),
        },
        None => None,
    };
    Ok(Trials { cpu: Some(cpu), card })
}

/// Describes the model in a folder, if there is one.
fn model_here(
    dir: &Path,
    measured: &Measurements,
) -> Option<std::result::Result<ModelHere, String>> {
    let has = |name: &str| dir.join(name).is_file();
    let gguf = match gguf_at(dir) {
        Err(error) => return Some(Err(format!("no model here was examined: {error}"))),
        Ok(gguf) => gguf,
    };
    let is_described = has("config.json") || has(PACK_METADATA) || gguf.is_some();
    let has_model = is_described && model::has_weights(dir).unwrap_or(false);
    has_model.then(|| {
        let (blueprint, _) = Model::open(dir).map_err(unrunnable)?.into_parts();
        let planned = PlannedModel::new(String::new(), blueprint, None);
        let context = planned.needs.context_max.min(CONTEXT_DEFAULT as u64);
        let machine =
            PlanMachine::here(&MachineOverrides::default(), measured, Some(&volume::key(dir)));
        let query = PlanQuery {
            planned: &planned,
            machine: &machine,
            context,
            routes: &RoutingSource::Unknown,
        };
        let n_experts = planned.needs.n_experts();
        match query.report() {
            Ok(report) => Ok(ModelHere { n_experts, expected: Ok(report.forecast) }),
            Err(Error::NoRoom { needed_bytes, .. }) => {
                Ok(ModelHere { n_experts, expected: Err(needed_bytes) })
            }
            Err(error) => Err(unrunnable(error)),
        }
    })
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn unrunnable(error: Error) -> String {
    format!("the model here cannot be run: {error}")
}
