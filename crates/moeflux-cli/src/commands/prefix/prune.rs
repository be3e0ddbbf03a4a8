//! `moeflux prefix prune`: removes what is saved, by a rule that the user gives.

use std::time::Duration;

use clap::{ArgGroup, Args};
use moeflux::{ByteCount, Error};
use moeflux_prefix::{PruneRule, Store, StoreLimits, StoreRole, WriteRefusal};

use crate::commands::prefix::{existing, failed, is_written_elsewhere, nothing, objects};
use crate::failure::{CommandFailure, CommandResult};
use crate::options::cache::{CacheDirArgs, shown};
use crate::options::ranges;
use crate::output::size;

/// The arguments of `moeflux prefix prune`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("rule").required(true))]
pub(super) struct PruneArgs {
    #[command(flatten)]
    dir: CacheDirArgs,
    /// Remove all conversations, and damaged files
    #[arg(long, group = "rule")]
    all: bool,
    /// Remove what was not used for this time (12h, 30d)
    #[arg(long, value_name = "TIME", value_parser = ranges::time, group = "rule")]
    unused_for: Option<Duration>,
    /// Remove what saves the least time, until no more than this size is left
    #[arg(long, value_name = "SIZE", value_parser = size::parse, group = "rule")]
    to: Option<u64>,
}

/// Removes conversations. Returns a message for the user.
///
/// # Errors
///
/// Another process writes to the folder, or the system refuses.
pub(super) fn run(args: &PruneArgs) -> CommandResult<String> {
    let Some(folder) = existing(&args.dir)? else { return nothing(&args.dir) };
    let dir = shown(folder.path());
    // The folder's size is no matter here: only the rule removes.
    let limits = StoreLimits { n_bytes_max: u64::MAX, write_bytes_per_day: 0 };
    let store = Store::open(folder, limits).map_err(failed)?;
    if store.try_take_over().map_err(failed)? == StoreRole::Reader {
        return Err(is_written_elsewhere("prune").into());
    }
    let before_bytes = store.counts().n_bytes;
    let n_removed = store.prune(args.rule()).map_err(refused)?;
    let left_bytes = store.counts().n_bytes;
    let freed_bytes = before_bytes.saturating_sub(left_bytes);
    Ok(format!(
        "{} removed from {dir}, {} freed, {} left",
        objects(n_removed),
        ByteCount(freed_bytes).rounded(),
        ByteCount(left_bytes).rounded()
    ))
}

impl PruneArgs {
    fn rule(&self) -> PruneRule {
        match (self.unused_for, self.to) {
            (Some(time), _) => PruneRule::UnusedFor(time),
            (None, Some(n_bytes)) => PruneRule::ToBytes(n_bytes),
            // One of the three is given.
            (None, None) => PruneRule::All,
        }
    }
}

fn refused(refusal: WriteRefusal) -> CommandFailure {
    Error::Machine(refusal.to_string()).into()
}
