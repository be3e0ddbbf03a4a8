//! The options of conversations that are saved on a drive, and the folder that they name.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use moeflux::{ByteCount, Error, Result};
use moeflux_prefix::{OwnerId, PrefixFolder, Store, StoreLimits, StoreRole, WallClock};
use moeflux_schedule::{Owner, SavedConversations};

use crate::options::ranges;
use crate::output::print;
use crate::system::clock;

/// Upper bound on the default size, and its part of the free space.
const SIZE_DEFAULT_MAX: u64 = 32_000_000_000;
const FREE_PART: u64 = 10;

/// Fewer tokens are read sooner than loaded.
const N_TOKENS_MIN: usize = 64;

/// Where experts are streamed, this many tokens are read in minutes.
const N_TOKENS_AT_RISK: usize = 8192;

/// Options of saved conversations.
#[derive(Clone, Debug, Args)]
pub(crate) struct CacheArgs {
    /// Save conversations in this folder, so that they go on after a restart without being read
    /// again. The folder then holds what users write
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Size of that folder; what saves the least time is removed first [default: a tenth of the
    /// free space, at most 32GB]
    #[arg(long, value_name = "SIZE", value_parser = ranges::cache_bytes, requires = "cache_dir")]
    cache_size: Option<u64>,
    /// Bytes that may be written to that folder per day
    #[arg(long, value_name = "SIZE", value_parser = ranges::cache_bytes, default_value = "100GB")]
    cache_writes_per_day: u64,
}

/// The system's clock.
#[derive(Debug)]
struct SystemClock;

impl WallClock for SystemClock {
    fn since_1970(&self) -> Duration {
        clock::since_1970()
    }
}

impl CacheArgs {
    /// Opens the folder, if one is named. `names` are those of owners, by number; without any, all
    /// requests have one owner.
    pub(crate) fn open(&self, names: &[String]) -> Result<Option<SavedConversations>> {
        let Some(dir) = &self.cache_dir else { return Ok(None) };
        let failed = |problem: &dyn fmt::Display| Error::Machine(format!("--cache-dir: {problem}"));
        let dir = std::path::absolute(dir).map_err(|error| failed(&error))?;
        let n_bytes_max = self.cache_size.unwrap_or_else(|| {
            // The store makes the folder, for this user alone.
            let existing = dir.ancestors().find(|it| it.exists()).unwrap_or(&dir);
            let free_bytes = moeflux_io::free_disk_bytes(existing).unwrap_or(0);
            (free_bytes / FREE_PART).min(SIZE_DEFAULT_MAX)
        });
        let limits = StoreLimits { n_bytes_max, write_bytes_per_day: self.cache_writes_per_day };
        let folder = PrefixFolder::new(dir.clone(), Arc::new(SystemClock));
        let store = Store::open(folder, limits).map_err(|error| failed(&error))?;
        let ids = names.iter().map(|name| store.owner(name));
        let ids: Vec<OwnerId> =
            ids.collect::<std::result::Result<_, _>>().map_err(|it| failed(&it))?;
        let role = match store.try_take_over() {
            Ok(StoreRole::Writer) => String::new(),
            Ok(StoreRole::Reader) => "; another process writes there, this one reads".to_owned(),
            Err(error) => format!("; they are only read there: {error}"),
        };
        let (dir, size) = (dir.display(), ByteCount(n_bytes_max).rounded());
        print::stderr_line(&format!("conversations are saved in {dir}, up to {size}{role}"));
        let owners = move |Owner(idx): Owner| match ids.is_empty() {
            true => Some(OwnerId::ANONYMOUS),
            false => ids.get(idx).copied(),
        };
        Ok(Some(SavedConversations {
            store,
            owners: Arc::new(owners),
            n_tokens_min: N_TOKENS_MIN,
            n_tokens_at_risk: N_TOKENS_AT_RISK,
        }))
    }
}
