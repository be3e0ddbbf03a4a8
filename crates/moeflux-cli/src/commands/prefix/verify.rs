//! `moeflux prefix verify`: reads everything that is saved.
//!
//! **Invariant:** changes nothing. Each damage is a line on standard output, and the command fails
//! at the end. What another process removes meanwhile is no damage.

use clap::Args;
use moeflux::{ByteCount, Error};
use moeflux_io::OneLine;
use moeflux_prefix::{Miss, MissReason, Store};

use crate::commands::prefix::{existing, failed, nothing, objects};
use crate::failure::CommandResult;
use crate::options::cache::{CacheDirArgs, shown};
use crate::output::print;

/// The arguments of `moeflux prefix verify`.
#[derive(Args, Clone, Debug)]
pub(super) struct PrefixVerifyArgs {
    #[command(flatten)]
    dir: CacheDirArgs,
}

/// Checks the folder. Prints one line per damage and a summary.
///
/// # Errors
///
/// Something is damaged, or the folder cannot be listed.
pub(super) fn run(args: &PrefixVerifyArgs) -> CommandResult {
    let Some(folder) = existing(&args.dir)? else {
        return Ok(print::line(&nothing(&args.dir)?)?);
    };
    let dir = shown(folder.path());
    let store = Store::open_to_read(folder).map_err(failed)?;
    let mut misses = store.damaged_headers().map_err(failed)?;
    let report = store.verify();
    misses.extend(report.misses);
    misses.retain(|it| !matches!(it.reason, MissReason::Missing));
    for Miss { id, reason } in &misses {
        let reason = reason.to_string();
        print::line(&format!("damaged: {}: {}", id.file_name(), OneLine::message(&reason)))?;
    }
    let (sound, size) = (objects(report.n_sound), ByteCount(report.n_bytes).rounded());
    if misses.is_empty() {
        return Ok(print::line(&format!("{sound} in {dir} match their checksums, {size}"))?);
    }
    let problem = format!(
        "{dir}: {} damaged, {sound} sound: damaged ones are not used, and the next program that \
         saves conversations sets them aside; `moeflux prefix prune --all` removes all",
        objects(misses.len())
    );
    Err(Error::Input(problem).into())
}
