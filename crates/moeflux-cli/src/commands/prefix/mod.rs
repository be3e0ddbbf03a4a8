//! `moeflux prefix`: lists, checks, removes and makes what is saved of conversations on a drive.
//!
//! **Invariant:** `list` and `verify` change nothing, and only `warm` makes a folder that is not
//! there.

mod list;
mod verify;
mod prune;
mod warm;

use clap::{Args, Subcommand};
use moeflux::Error;
use moeflux_prefix::PrefixFolder;

use crate::commands::prefix::list::PrefixListArgs;
use crate::commands::prefix::prune::PruneArgs;
use crate::commands::prefix::verify::PrefixVerifyArgs;
use crate::commands::prefix::warm::WarmArgs;
use crate::failure::{CommandFailure, CommandResult};
use crate::options::args::ModelArgs;
use crate::options::cache::{CacheDirArgs, shown};
use crate::output::print;

/// The arguments of `moeflux prefix`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PrefixArgs {
    #[command(subcommand)]
    command: PrefixCommand,
}

/// What to do with saved conversations.
#[derive(Clone, Debug, Subcommand)]
enum PrefixCommand {
    /// List saved conversations by model and owner, with their sizes and last use
    List(PrefixListArgs),
    /// Read all saved conversations and compare them with their checksums
    Verify(PrefixVerifyArgs),
    /// Remove saved conversations: all, those that were not used lately, or down to a size
    Prune(PruneArgs),
    /// Read prompts ahead of their use, so that later ones that begin with them are answered sooner
    Warm(Box<WarmArgs>),
}

impl PrefixArgs {
    /// Returns the model options of a command that runs a model.
    pub(crate) fn model(&mut self) -> Option<&mut ModelArgs> {
        match &mut self.command {
            PrefixCommand::Warm(args) => Some(&mut args.model),
            _ => None,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &PrefixArgs) -> CommandResult {
    match &args.command {
        PrefixCommand::List(args) => Ok(print::line(&list::run(args)?)?),
        PrefixCommand::Verify(args) => verify::run(args),
        PrefixCommand::Prune(args) => Ok(print::line(&prune::run(args)?)?),
        PrefixCommand::Warm(args) => warm::run(args),
    }
}

/// Returns the folder if conversations were ever saved in it.
fn existing(args: &CacheDirArgs) -> CommandResult<Option<PrefixFolder>> {
    let folder = args.folder()?;
    let is_there = folder.is_there().map_err(failed)?;
    Ok(is_there.then_some(folder))
}

/// Says that a folder holds nothing.
fn nothing(args: &CacheDirArgs) -> CommandResult<String> {
    Ok(format!("no conversations in {}", shown(args.folder()?.path())))
}

fn failed(error: moeflux_prefix::Error) -> CommandFailure {
    Error::Machine(error.to_string()).into()
}

/// Says why this process cannot change the folder.
fn is_written_elsewhere(then: &str) -> Error {
    Error::Input(format!(
        "another process saves conversations there: end it first (`moeflux serve`, `chat` or \
         `prefix`), then {then}"
    ))
}

/// Formats a number of files of the folder.
fn objects(n_objects: usize) -> String {
    if n_objects == 1 { "1 file".to_owned() } else { format!("{n_objects} files") }
}
