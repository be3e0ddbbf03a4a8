//! `moeflux rm`: removes a model, or a revision of it, from the hub's cache.

use clap::Args;
use moeflux::{ByteCount, Error};
use moeflux_hub::{Cache, ModelRef};

use crate::failure::{CommandFailure, CommandResult};
use crate::model::hub;
use crate::output::ask::{self, confirm};

/// The arguments of `moeflux rm`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RmArgs {
    /// A model that `moeflux list` shows, optionally with a branch, tag or commit [default: the
    /// whole model]
    #[arg(value_name = "OWNER/NAME[@REVISION]", value_parser = hub::wanted)]
    wanted: ModelRef,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
}

/// Removes the model. Returns a message for the user.
///
/// # Errors
///
/// Fails if it does not exist or must not be removed.
pub(crate) fn run(args: &RmArgs) -> CommandResult<String> {
    let wanted = &args.wanted;
    if let Some(quant) = wanted.quant() {
        let problem = format!("`rm` removes whole revisions: leave out `:{quant}`");
        return Err(CommandFailure::Usage(problem));
    }
    let removal = Cache::new(&hub::settings()?.cache).removal(wanted)?;
    let question = format!("Remove {wanted}, {}?", ByteCount(removal.n_bytes()).rounded());
    if !args.yes && !confirm(&question, ask::DefaultAnswer::No)? {
        return Err(Error::Input("nothing was removed".to_owned()).into());
    }
    let left = match removal.n_revisions_left() {
        0 => String::new(),
        1 => "; another revision of the model remains".to_owned(),
        n_left => format!("; {n_left} other revisions of the model remain"),
    };
    let freed_bytes = removal.run()?;
    Ok(format!("{wanted} was removed, {} were freed{left}", ByteCount(freed_bytes)))
}
