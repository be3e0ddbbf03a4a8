//! The options of conversations that are saved on a drive, and the folder that they name.
//!
//! **Invariant:** a folder that was not asked for never ends a command: without it, conversations
//! are not saved. The folder is the user's own: none is shared with other users by default.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use moeflux::{ByteCount, Engine, Error, Result};
use moeflux_io::OneLine;
use moeflux_prefix::{OwnerId, PrefixFolder, Store, StoreLimits, StoreRole, WallClock};
use moeflux_schedule::{Owner, SavedConversations};

use crate::options::ranges;
use crate::system::{cache, clock};

/// Upper bound on the default size, and its part of the free space.
const SIZE_DEFAULT_MAX: u64 = 32_000_000_000;
const FREE_PART: u64 = 10;

/// The value of `--cache-dir` with which nothing is saved.
const NO_DIR: &str = "none";

/// Options of saved conversations.
#[derive(Clone, Debug, Args)]
pub(crate) struct CacheArgs {
    /// Folder in which conversations are saved, so that they go on after a restart without being
    /// read again. It holds what users write. `none` saves nothing [default: moeflux/prefix in the
    /// user's cache folder; none with --api-key-file, with --no-history, or in `generate`]
    #[arg(long, value_name = "DIR|none")]
    cache_dir: Option<PathBuf>,
    /// Size of that folder; what saves the least time is removed first [default: a tenth of the
    /// free space, at most 32GB]
    #[arg(long, value_name = "SIZE", value_parser = ranges::cache_bytes)]
    cache_size: Option<u64>,
    /// Bytes that may be written to that folder per day
    #[arg(long, value_name = "SIZE", value_parser = ranges::cache_bytes, default_value = "100GB")]
    cache_writes_per_day: u64,
}

/// The folder of saved conversations, for commands that list and remove them.
#[derive(Args, Clone, Debug)]
pub(crate) struct CacheDirArgs {
    /// Folder of saved conversations [default: moeflux/prefix in the user's cache folder]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

/// How a command uses the folder.
pub(crate) struct CacheUse<'a> {
    /// Names of owners, by number; without any, all requests have one owner.
    pub(crate) owner_names: &'a [String],
    /// Why conversations are not saved unless `--cache-dir` is given; `None` if they are.
    pub(crate) off: Option<&'static str>,
}

/// What became of the folder.
pub(crate) enum OpenedCache {
    /// Conversations are saved; a line says where.
    Open(SavedConversations, String),
    /// They are not, and a line says why.
    Refused(String),
    /// They are not, as is expected.
    Off,
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
    /// Returns whether conversations are to be saved in a folder of `--cache-dir`.
    pub(crate) fn names_folder(&self) -> bool {
        self.cache_dir.as_deref().is_some_and(|dir| dir != Path::new(NO_DIR))
    }

    /// Opens the folder, if conversations are to be saved.
    ///
    /// # Errors
    ///
    /// The folder of `--cache-dir` cannot be used.
    pub(crate) fn open(&self, used: &CacheUse<'_>) -> Result<OpenedCache> {
        let named = self.cache_dir.as_deref();
        let refused = |why: &dyn fmt::Display| {
            Ok(OpenedCache::Refused(format!("conversations are not saved: {why}")))
        };
        match (named, used.off) {
            (Some(dir), _) if dir == Path::new(NO_DIR) => return Ok(OpenedCache::Off),
            (None, Some(why)) if self.cache_size.is_some() => return refused(&why),
            (None, Some(_)) => return Ok(OpenedCache::Off),
            _ => {}
        }
        match named {
            Some(dir) => self
                .open_folder(dir, used.owner_names)
                .map_err(|problem| Error::Machine(format!("--cache-dir: {problem}"))),
            None => match usual_dir() {
                Some(dir) => self.open_folder(&dir, used.owner_names).or_else(|problem| {
                    refused(&format_args!("{problem}; --cache-dir names another folder"))
                }),
                None => refused(&"the user has no cache folder; --cache-dir names one"),
            },
        }
    }

    fn open_folder(
        &self,
        dir: &Path,
        names: &[String],
    ) -> std::result::Result<OpenedCache, String> {
        let dir = std::path::absolute(dir).map_err(|error| error.to_string())?;
        let n_bytes_max = self.cache_size.unwrap_or_else(|| default_bytes(&dir));
        let limits = StoreLimits { n_bytes_max, write_bytes_per_day: self.cache_writes_per_day };
        let store = Store::open(folder(&dir), limits).map_err(|error| error.to_string())?;
        let ids: std::result::Result<Vec<OwnerId>, _> =
            names.iter().map(|name| store.owner(name)).collect();
        let ids = ids.map_err(|error| error.to_string())?;
        let role = match store.try_take_over() {
            Ok(StoreRole::Writer) => String::new(),
            Ok(StoreRole::Reader) => "; another process writes there, this one reads".to_owned(),
            Err(error) => format!("; they are only read there: {error}"),
        };
        let way_out = match self.cache_dir {
            Some(_) => "",
            None => "; --cache-dir none turns this off",
        };
        let (dir, size) = (shown(&dir), ByteCount(n_bytes_max).rounded());
        let line = format!("conversations are saved in {dir}, up to {size}{role}{way_out}");
        let owners = move |Owner(idx): Owner| match ids.is_empty() {
            true => Some(OwnerId::ANONYMOUS),
            false => ids.get(idx).copied(),
        };
        let saved = SavedConversations::new(store);
        Ok(OpenedCache::Open(SavedConversations { owners: Arc::new(owners), ..saved }, line))
    }
}

impl CacheDirArgs {
    /// Returns the folder, which need not exist.
    pub(crate) fn folder(&self) -> Result<PrefixFolder> {
        let dir = match self.cache_dir.clone().or_else(usual_dir) {
            Some(dir) => std::path::absolute(dir),
            None => {
                let problem = "the user has no cache folder: name one with --cache-dir";
                return Err(Error::Input(problem.to_owned()));
            }
        };
        let dir = dir.map_err(|error| Error::Machine(format!("--cache-dir: {error}")))?;
        Ok(folder(&dir))
    }
}

/// Names the model for `moeflux prefix list`. Without a name, that shows a hash alone.
pub(crate) fn name_model(saved: Option<&SavedConversations>, engine: &Engine, name: &str) {
    if let Some(saved) = saved {
        drop(saved.store.name_model(&engine.state_identity(), name));
    }
}

/// Returns the size of the folder unless `--cache-size` is given.
pub(crate) fn default_bytes(dir: &Path) -> u64 {
    // The store makes the folder, for this user alone.
    let existing = dir.ancestors().find(|it| it.exists()).unwrap_or(dir);
    let free_bytes = moeflux_io::free_disk_bytes(existing).unwrap_or(0);
    (free_bytes / FREE_PART).min(SIZE_DEFAULT_MAX)
}

/// Returns a path as messages show it.
pub(crate) fn shown(dir: &Path) -> String {
    OneLine::message(&dir.to_string_lossy()).to_string()
}

/// Returns the folder without `--cache-dir`. What users write is no matter for a folder that all
/// users of the machine share.
fn usual_dir() -> Option<PathBuf> {
    cache::own_folder().map(|dir| dir.join("prefix"))
}

fn folder(dir: &Path) -> PrefixFolder {
    PrefixFolder::new(dir.to_owned(), Arc::new(SystemClock))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[derive(Parser)]
    struct Given {
        #[command(flatten)]
        cache: CacheArgs,
    }

    const USUAL: CacheUse<'static> = CacheUse { owner_names: &[], off: None };

    /// Returns what is said of these arguments, and whether conversations are saved.
    #[track_caller]
    fn said(args: &[&str], used: &CacheUse<'_>) -> (bool, String) {
        let given = Given::try_parse_from([&["moeflux"], args].concat()).unwrap();
        match given.cache.open(used).unwrap() {
            OpenedCache::Open(_, line) => (true, line),
            OpenedCache::Refused(line) => (false, line),
            OpenedCache::Off => (false, String::new()),
        }
    }

    #[test]
    fn what_was_asked_for_decides() {
        let root = TempDir::new();
        let dir = root.file("cache");
        let named = ["--cache-dir", dir.to_str().unwrap(), "--cache-size", "2M"];
        let (is_saved, line) = said(&named, &CacheUse { off: Some("of keys"), ..USUAL });
        assert!(is_saved && line.ends_with("cache, up to 2.10 MB"), "{line}");
        assert_eq!(said(&["--cache-dir", "none"], &USUAL), (false, String::new()));
        // Nothing here may touch the cache folder of who runs the tests.
        let off = CacheUse { off: Some("of keys"), ..USUAL };
        assert_eq!(said(&[], &off), (false, String::new()));
        let line = "conversations are not saved: of keys".to_owned();
        assert_eq!(said(&["--cache-size", "2M"], &off), (false, line));
    }
}
