//! Checkpoints from the Hugging Face hub, in the cache that the hub's own tools use.
//!
//! **Invariant:** what has a name in the cache is whole and has the hash that it is named by; what
//! is not, ends in `.incomplete`. A token goes to the endpoint's own host only. Knows HTTP, files
//! and hashes; never tensors or models.
//!
//! A [`Hub`] asks for a repository's files ([`Hub::look`]), and fetches those that were chosen
//! ([`Hub::pull`]). A [`Cache`] says what is there ([`Cache::repos`]), where a model is
//! ([`Cache::find`]), and removes ([`Cache::removal`]). The layout is that of the Python package
//! `huggingface_hub`, whose locks are respected:
//!
//! ```text
//! models--OWNER--NAME/
//!   blobs/HASH                      contents: SHA-256 of large files, git's SHA-1 of others
//!   blobs/HASH.moeflux.incomplete   what is there of one, and the list of its finished pieces
//!   snapshots/COMMIT/FILE           a link to a blob
//!   refs/main                       a commit
//!   trees/COMMIT.json               all files of the repository at that commit
//!   .moeflux/HASH                   files that were found to have these contents
//! .locks/models--OWNER--NAME/HASH.lock
//! ```

mod error;
mod glob;
mod link;
mod quant;
mod name;
mod file;
mod settings;
mod stop;
mod hash;
mod listing;
mod choice;
mod cache;
mod mark;
mod check;
mod client;
mod journal;
mod remote;
mod pull;

pub use cache::{Cache, Removal, Repo, Snapshot, State};
pub use check::{Progress, Trust};
pub use choice::Choice;
pub use error::{Error, Result};
pub use glob::Glob;
pub use listing::{Listed, Listing};
pub use name::{RepoId, Wanted};
pub use pull::{N_CONNECTIONS_MAX, PIECE_BYTES, Pulled};
pub use quant::Quant;
pub use remote::{Hub, Presence, Remote};
pub use settings::{Pace, Settings, Token};
pub use stop::Stop;
