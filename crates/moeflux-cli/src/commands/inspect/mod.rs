//! `moeflux inspect`: the architecture of a model, the sizes of its parts and the cost of a token.
//!
//! **Invariant:** reads headers only, so that a 400 GB checkpoint is described in well under a
//! second; a bare `config.json` is described as the checkpoint that it would produce.

mod report;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use moeflux::provider::model::Headers;
use moeflux::{Error, Model};

use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::model::bare_config::{BareConfig, parse_bits, parse_group};
use crate::model::known;
use report::{InspectReport, InspectedFiles};

/// The arguments of `moeflux inspect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InspectArgs {
    /// Folder or GGUF file of a model, its OWNER/NAME in the hub's cache, a config.json to show the
    /// sizes that the model would have, or one of the names that `moeflux plan` lists [default: the
    /// demo model]
    #[arg(value_name = "DIR|FILE.gguf|CONFIG.json|OWNER/NAME[:QUANT]|NAME")]
    pub(crate) path: Option<PathBuf>,
    /// Bits per weight, for a config without weights: 2, 3, 4, 5, 6 or 8 [default: as in the
    /// config]
    #[arg(long, value_parser = parse_bits)]
    pub(crate) bits: Option<u8>,
    /// Weights per scale, for a config without weights: 32, 64 or 128 [default: as in the config]
    #[arg(long, value_parser = parse_group)]
    pub(crate) group: Option<u8>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Describes the model. Returns the text to print.
///
/// # Errors
///
/// Fails if the config, the headers or the arguments are invalid.
pub(crate) fn run(args: &InspectArgs) -> CommandResult<String> {
    let located = args.path.as_deref().map(known::located).transpose()?;
    if let Some(known) = located.as_deref().and_then(known::named) {
        return Ok(shown(&of_config(&known.config()?, args)?, args));
    }
    let path = &model::path_or_config(located.as_deref())?;
    let is_whole = path.is_dir() || model::has_weights(path)?;
    let report =
        if is_whole { of_weights(path, args)? } else { of_config(&BareConfig::open(path)?, args)? };
    Ok(shown(&report, args))
}

fn shown(report: &InspectReport, args: &InspectArgs) -> String {
    if args.json { format!("{:#}", report.to_json()) } else { text::render(report) }
}

fn of_weights(dir: &Path, args: &InspectArgs) -> CommandResult<InspectReport> {
    let config = dir.join("config.json");
    if args.bits.is_some() || args.group.is_some() {
        let path = dir.display();
        return Err(CommandFailure::Usage(if dir.is_dir() {
            let config = config.display();
            format!(
                "--bits and --group need a config.json, and {path} is a folder: leave them out, \
                 or inspect {config}"
            )
        } else {
            format!("--bits and --group need a config.json, and {path} is not one: leave them out")
        }));
    }
    if config.is_file() && !model::has_weights(dir)? {
        let problem =
            format!("has no *.safetensors files; for sizes: moeflux inspect {}", config.display());
        return Err(Error::malformed(dir, problem).into());
    }
    let (blueprint, checkpoint) = Model::open(dir)?.into_parts();
    let files = InspectedFiles {
        n_files: checkpoint.files.len(),
        n_bytes: checkpoint.files.iter().map(|file| file.len_bytes).sum(),
        is_packed: checkpoint.packed.is_some(),
    };
    Ok(InspectReport::new(&blueprint, &blueprint.model_type, Some(files)))
}

fn of_config(config: &BareConfig, args: &InspectArgs) -> CommandResult<InspectReport> {
    let blueprint = config.blueprint(config.kind(args.bits, args.group)?)?;
    Ok(InspectReport::new(&blueprint, config.model_type(), None))
}

#[cfg(test)]
mod tests;
