//! `moeflux plan`: what a model would need of a machine, and how fast it would be there.
//!
//! **Invariant:** reads headers or a `config.json` only and measures nothing, so that it answers in
//! well under a tenth of a second; every figure that was assumed says so.

pub(crate) mod forecast;
pub(crate) mod machine;
mod tiers;
pub(crate) mod advice;
pub(crate) mod report;
pub(crate) mod text;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use moeflux::ByteCount;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::format::RawConfig;

use crate::bare_config::{BareConfig, parse_bits, parse_group};
use crate::failure::{Failure, Outcome};
use crate::hub;
use crate::measured::Measured;
use crate::model;
use crate::needs::Needs;
use crate::place;
use crate::ranges;
use crate::size;
use machine::{PlanMachine, Told};
use report::{Report, Subject};

/// Tokens of a session unless told otherwise, as `generate` has.
pub(crate) const CONTEXT_DEFAULT: usize = 4096;

/// What `moeflux plan` is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// A config.json of a model that need not exist here, the folder of a model, or OWNER/NAME of
    /// one that `moeflux pull` downloaded
    #[arg(value_name = "CONFIG.json|DIR|OWNER/NAME")]
    pub(crate) path: PathBuf,
    /// Bits per weight, with a config.json only: 2, 3, 4, 5, 6 or 8 [default: the config's, or 4]
    #[arg(long, value_parser = parse_bits)]
    pub(crate) bits: Option<u8>,
    /// Weights per scale, with a config.json only: 32, 64 or 128 [default: the config's, or 64]
    #[arg(long, value_parser = parse_group)]
    pub(crate) group: Option<u8>,
    /// Total memory, for example 24G or 1.5GiB [default: the memory that is available on this
    /// machine now]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) ram: Option<u64>,
    /// Additional memory of a GPU; shows where experts would be placed
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,
    /// Read rate of the drive, in 10^9 bytes per second [default: the rate that `moeflux doctor`
    /// last measured, for DIR's drive if there is a DIR, or 3]
    #[arg(long, value_name = "X", value_parser = ranges::gbps)]
    pub(crate) disk_gbps: Option<f64>,
    /// Read rate of memory, in 10^9 bytes per second [default: the rate that `moeflux doctor` last
    /// measured, or 60]
    #[arg(long, value_name = "X", value_parser = ranges::gbps)]
    pub(crate) mem_gbps: Option<f64>,
    /// Tokens per session [default: 4096, or the model's limit if that is lower]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Plans; answers what to print.
///
/// # Errors
///
/// What is wrong with the config, the headers or the arguments.
pub(crate) fn run(args: &PlanArgs) -> Outcome<String> {
    let path = &hub::found(&args.path)?;
    let (blueprint, subject) = open(path, args)?;
    let context = model::context_for(&blueprint.spec, args.context, CONTEXT_DEFAULT)?;
    let told = Told { ram_bytes: args.ram, drive_gbps: args.disk_gbps, memory_gbps: args.mem_gbps };
    let drive_key = subject.exists.then(|| place::key(path));
    let machine = PlanMachine::here(&told, &Measured::load(), drive_key.as_deref());
    let report = Report::new(Needs::new(&blueprint), subject, machine, context as u64);
    let report = report.beside(args.gpu_memory);
    Ok(if args.json { format!("{:#}", report.to_json()) } else { text::render(&report) })
}

/// What is expected here of a model that is not here yet: a line. None if the config is of no model
/// that runs. Weights that are not quantised are planned as most would pack them.
pub(crate) fn expectation(config: Vec<u8>, drive_key: Option<&str>) -> Option<String> {
    let config = BareConfig::parse(Path::new("config.json"), config).ok()?;
    let published = config.published_params().ok()?;
    let params = config.params(None, None).ok()?;
    let needs = Needs::new(&config.blueprint(params).ok()?);
    let machine = PlanMachine::here(&Told::default(), &Measured::load(), drive_key);
    let context = needs.context_max.min(CONTEXT_DEFAULT as u64);
    let gives = machine.gives()?;
    let speed = match forecast::forecast(&needs, &gives, context) {
        Some(forecast) => advice::speed_range(&forecast),
        None => format!("too large, it needs {}", ByteCount(needs.least_bytes(context)).rounded()),
    };
    let packed = match published {
        Some(_) => String::new(),
        None => format!("packed with {} bits (`moeflux pack`): ", params.bits),
    };
    let drive = format!("{:.2} GB/s", gives.drive_bytes_per_s / 1e9);
    Some(format!(
        "{packed}{speed}, with {} of memory and a drive of {drive}; `moeflux plan` says more",
        ByteCount(gives.budget_bytes).rounded()
    ))
}

fn open(path: &Path, args: &PlanArgs) -> Outcome<(Blueprint, Subject)> {
    model::check_named(path)?;
    let is_bare = !path.is_dir() || !model::has_weights(path)?;
    if is_bare {
        let config = BareConfig::open(path)?;
        let params = config.params(args.bits, args.group)?;
        let blueprint = config.blueprint(params)?;
        let model_type = config.model_type().to_owned();
        return Ok((blueprint, Subject { model_type, exists: false, params: Some(params) }));
    }
    if args.bits.is_some() || args.group.is_some() {
        let config = path.join("config.json");
        return Err(Failure::Usage(format!(
            "--bits and --group need a config.json without weights, and {} has weights: leave \
             them out, or plan {}",
            path.display(),
            config.display()
        )));
    }
    let (blueprint, _) = Blueprint::of_folder(path)?;
    let raw = RawConfig::open(path)?;
    let model_type = raw.root().str_opt("model_type")?.unwrap_or_default().to_owned();
    Ok((blueprint, Subject { model_type, exists: true, params: None }))
}

#[cfg(test)]
mod tests;
