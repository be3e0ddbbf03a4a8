//! `moeflux plan`: the memory that a model needs, and its expected speed on a machine.
//!
//! **Invariant:** reads only headers or a `config.json` and measures nothing, so that it answers in
//! well under a tenth of a second; every assumed figure is marked as such.

pub(crate) mod cards;
pub(crate) mod resources;
pub(crate) mod routing;
pub(crate) mod forecast;
pub(crate) mod machine;
pub(crate) mod report;
pub(crate) mod advice;
pub(crate) mod list;
pub(crate) mod text;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use moeflux::provider::weights::SyntheticKind;
use moeflux::{ByteCount, Error, Model};

use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::model::bare_config::{BareConfig, parse_bits, parse_group};
use crate::model::device;
use crate::model::hub;
use crate::model::known::{self, KnownModel};
use crate::options::ranges;
use crate::output::fold::point;
use crate::output::size;
use crate::system::measurements::Measurements;
use crate::system::network::{Cluster, Network};
use crate::system::volume;
use cards::KnownCard;
use list::PlanList;
use machine::{MachineOverrides, PlanCard, PlanMachine};
use report::{PlanQuery, PlanReport, PlannedModel, check_memory_known};
use routing::RoutingSource;

/// Default tokens of a session, as in `generate`.
pub(crate) const CONTEXT_DEFAULT: usize = 4096;

/// The arguments of `moeflux plan`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// Name of a known model, or part of it; a config.json; the folder or GGUF file of a model; or
    /// OWNER/NAME of one that `moeflux pull` downloaded [default: all known models, one per line]
    #[arg(value_name = "NAME|CONFIG.json|DIR|FILE.gguf|OWNER/NAME[:QUANT]")]
    pub(crate) path: Option<PathBuf>,
    /// Bits per weight, for a model without weights here: 2, 3, 4, 5, 6 or 8 [default: as in the
    /// config]
    #[arg(long, value_parser = parse_bits)]
    pub(crate) bits: Option<u8>,
    /// Weights per scale, for a model without weights here: 32, 64 or 128 [default: as in the
    /// config]
    #[arg(long, value_parser = parse_group)]
    pub(crate) group: Option<u8>,
    /// Memory of another machine, for example 64G; a sixteenth of it is left for other programs
    /// [default: the memory that is available on this machine now]
    #[arg(long, value_name = "SIZE", value_parser = ranges::memory)]
    pub(crate) ram: Option<u64>,
    /// Memory that the whole process may use, as in the commands that run a model
    #[arg(long, value_name = "SIZE", value_parser = ranges::memory, conflicts_with = "ram")]
    pub(crate) memory: Option<u64>,
    /// GPU to plan for, for example "RTX 3090": its memory, memory rate and link to the host are
    /// the vendor's figures. An unknown name lists the known ones
    #[arg(long, value_name = "NAME", value_parser = cards::named)]
    pub(crate) gpu: Option<&'static KnownCard>,
    /// GPU memory that a model may use; the GPU computes, and reads experts that do not fit there
    /// from the host's memory. 0: no GPU [default: the GPU that `moeflux doctor` measured, if the
    /// model fits there]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,
    /// Rate at which answers read GPU memory, in 10^9 bytes per second [default: measured by
    /// `moeflux doctor`, or six tenths of the vendor's figure for --gpu, or of the usual figure for
    /// cards with as much memory]
    #[arg(long, value_name = "X", value_parser = ranges::gbps)]
    pub(crate) gpu_gbps: Option<f64>,
    /// Number of cores of another machine, of the same kind as this one's
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub(crate) cores: Option<NonZeroUsize>,
    /// Operations per second of all cores together, in 10^9, when they read a prompt [default:
    /// measured by `moeflux doctor`, or assumed from the CPU's kernels]
    #[arg(long, value_name = "X", value_parser = ranges::gbps)]
    pub(crate) gops: Option<f64>,
    /// Read rate of the drive, in 10^9 bytes per second [default: the rate that `moeflux doctor`
    /// last measured, for DIR's drive if there is a DIR, or 3]
    #[arg(long, value_name = "X", value_parser = ranges::gbps)]
    pub(crate) disk_gbps: Option<f64>,
    /// Read rate of memory, in 10^9 bytes per second [default: the rate that `moeflux doctor` last
    /// measured, or 60]
    #[arg(long, value_name = "X", value_parser = ranges::gbps)]
    pub(crate) mem_gbps: Option<f64>,
    /// Routing trace of this model, written with --trace by a command that runs it: shows how often
    /// experts are found in memory
    #[arg(long, value_name = "FILE", requires = "path")]
    pub(crate) trace: Option<PathBuf>,
    /// Number of machines like this one that run the model together under an MPI launcher
    #[arg(
        long,
        value_name = "N",
        value_parser = ranges::ranks,
        conflicts_with_all = ["gpu_memory", "gpu"]
    )]
    pub(crate) ranks: Option<NonZeroUsize>,
    /// Network between them: 1g, 10g, 25g-rdma, tb5, or the time of a message in microseconds and
    /// 10^9 bytes per second, such as 50,1.1 [default: 10g]
    #[arg(long, value_name = "NETWORK", value_parser = Network::parse, requires = "ranks")]
    pub(crate) network: Option<Network>,
    /// Tokens per session [default: 4096, or the model's limit if that is lower]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    pub(crate) context: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl PlanArgs {
    fn cluster(&self) -> Option<Cluster> {
        let n_ranks = u32::try_from(self.ranks?.get()).ok().filter(|n_ranks| *n_ranks > 1)?;
        Some(Cluster { n_ranks, network: self.network.unwrap_or_else(Network::usual) })
    }

    fn overrides(&self) -> MachineOverrides {
        MachineOverrides {
            ram_bytes: self.ram,
            budget_bytes: self.memory,
            drive_gbps: self.disk_gbps,
            memory_gbps: self.mem_gbps,
            n_cores: self.cores,
            gops: self.gops,
            gpu_bytes: self.gpu_memory,
            gpu_gbps: self.gpu_gbps,
            gpu: self.gpu,
            cluster: self.cluster(),
        }
    }
}

/// Plans. Returns the text to print.
///
/// # Errors
///
/// Fails if the config, the headers or the arguments are invalid, or the memory is too small.
pub(crate) fn run(args: &PlanArgs) -> CommandResult<String> {
    let Some(path) = &args.path else { return all_known(args) };
    let path = known::located(path)?;
    let planned = open(&path, args)?;
    let context = model::context_within(&planned.blueprint.spec, args.context, CONTEXT_DEFAULT)?;
    let drive_key = planned.kind.is_none().then(|| volume::key(&path));
    let machine = PlanMachine::here(&args.overrides(), &Measurements::load(), drive_key.as_deref());
    check_memory_known(&machine)?;
    let planned = planned.streamed_on(&machine, context as u64).unwrap_or(planned);
    if let Some(card) = machine.card.as_ref().filter(|card| card.is_requested) {
        check_card(card, &planned)?;
    }
    let routes = match &args.trace {
        Some(trace) => RoutingSource::open(trace, &planned.needs)?,
        None => RoutingSource::Unknown,
    };
    let context = context as u64;
    let alone = machine.cluster.and_then(|_| {
        let machine = machine.alone();
        let query = PlanQuery { planned: &planned, machine: &machine, context, routes: &routes };
        Some(query.report().ok()?.forecast.answer)
    });
    let planned = planned.divided(machine.cluster.as_ref())?;
    let query = || PlanQuery { planned: &planned, machine: &machine, context, routes: &routes };
    let report = query().report().map_err(|error| query().refused(error))?;
    let report = PlanReport { alone, ..report };
    Ok(if args.json {
        format!("{:#}", report.to_json(&advice::advice(&report)))
    } else {
        text::render(&report) + &download(&path, args)
    })
}

/// Returns how to download a model that is known by name, if it was planned as published.
fn download(path: &Path, args: &PlanArgs) -> String {
    let is_as_published = args.bits.is_none() && args.group.is_none();
    let known = known::named(path).filter(|_| is_as_published);
    let Some(wanted) = known.and_then(KnownModel::repository) else { return String::new() };
    let lines = point(&format!("`moeflux pull {wanted}` downloads it"));
    lines.iter().fold(String::new(), |text, line| text + "\n" + line.trim_end())
}

/// Refuses an explicitly requested card that cannot compute the model.
fn check_card(card: &PlanCard, planned: &PlannedModel) -> Result<(), Error> {
    device::check_kinds(&planned.blueprint)?;
    planned.needs.check_gpu_memory(card.resources.room_bytes, &card.allowed_by())
}

/// Reports on this machine and every model that is known by name.
fn all_known(args: &PlanArgs) -> CommandResult<String> {
    let machine = PlanMachine::here(&args.overrides(), &Measurements::load(), None);
    check_memory_known(&machine)?;
    let context = args.context.map_or(CONTEXT_DEFAULT, NonZeroUsize::get);
    let list = PlanList::new(&machine, context as u64, (args.bits, args.group))?;
    if args.json {
        return Ok(format!("{:#}", list.json()));
    }
    let mut lines = text::machine_lines(&machine);
    lines.push(String::new());
    lines.extend(list.lines());
    lines.push(String::new());
    let note = "tokens per second, from low to high: answers at the beginning of a session, and a \
                prompt of 512 tokens; weights that do not fit are read from the drive. `moeflux \
                plan NAME` shows details; --ram, --gpu and others (`moeflux help plan`) describe \
                another machine";
    lines.extend(point(note));
    lines.extend(machine.doubts.iter().flat_map(|it| point(&format!("warning: {it}"))));
    Ok(lines.join("\n"))
}

/// Returns a line with the forecast for a model that is not downloaded yet, or `None` if the config
/// is not of a runnable model. Unquantised weights are planned as most users would pack them.
pub(crate) fn expectation(config: Vec<u8>, drive_key: Option<&str>) -> Option<String> {
    let config = BareConfig::parse(Path::new("config.json"), config).ok()?;
    let (kind, packed) = match config.published_kind().ok()? {
        SyntheticKind::Float => (advice::PACKED, "packed with 4 bits (`moeflux pack`): "),
        published => (published, ""),
    };
    let planned = PlannedModel::new(String::new(), config.blueprint(kind).ok()?, Some(kind));
    let machine = PlanMachine::here(&MachineOverrides::default(), &Measurements::load(), drive_key);
    let context = planned.needs.context_max.min(CONTEXT_DEFAULT as u64);
    let planned = planned.streamed_on(&machine, context).unwrap_or(planned);
    let memory = ByteCount(machine.memory_bytes()?).rounded();
    let query = PlanQuery {
        planned: &planned,
        machine: &machine,
        context,
        routes: &RoutingSource::Unknown,
    };
    let speed = match query.report() {
        Ok(report) => advice::first_tokens(&report.forecast),
        Err(Error::NoRoom { needed_bytes, .. }) => {
            format!("too large, it needs {}", ByteCount(needed_bytes).rounded())
        }
        Err(_) => return None,
    };
    let drive = format!("{:.2} GB/s", machine.drive.value / 1e9);
    Some(format!(
        "{packed}{speed}, with {memory} of memory and a drive of {drive}; `moeflux plan` shows \
         details"
    ))
}

fn open(path: &Path, args: &PlanArgs) -> CommandResult<PlannedModel> {
    if let Some(known) = known::named(path) {
        return of_known(known, args);
    }
    if !path.exists() && known::may_be_name(path) {
        return Err(known::unknown(path).into());
    }
    model::check_named(path)?;
    let is_bare = !model::has_weights(path)?;
    if is_bare {
        let config = BareConfig::open(path)?;
        let kind = config.kind(args.bits, args.group)?;
        let model_type = config.model_type();
        let name = if model_type.is_empty() { "a model" } else { model_type }.to_owned();
        return Ok(PlannedModel::new(name, config.blueprint(kind)?, Some(kind)));
    }
    if args.bits.is_some() || args.group.is_some() {
        let config = path.join("config.json");
        let instead = match config.is_file() {
            true => format!("leave them out, or plan {}", config.display()),
            false => "leave them out".to_owned(),
        };
        return Err(CommandFailure::Usage(format!(
            "--bits and --group need a config.json without weights, and {} has weights: {instead}",
            path.display(),
        )));
    }
    let planned = PlannedModel::of_model(Model::open(path)?);
    Ok(PlannedModel { name: hub::name_of(path), ..planned })
}

fn of_known(known: &KnownModel, args: &PlanArgs) -> CommandResult<PlannedModel> {
    let config = known.config()?;
    let kind = config.kind(args.bits, args.group)?;
    Ok(PlannedModel::new(known.name.to_owned(), config.blueprint(kind)?, Some(kind)))
}

#[cfg(test)]
mod machines_tests;
#[cfg(test)]
mod tests;
