//! Checkpoints from the Hugging Face hub, in the cache that the hub's own tools use.
//!
//! **Invariant:** a file in the cache under its final name is complete and has the hash in its
//! name; incomplete files end in `.incomplete`. A token is only sent to the endpoint's own host.
//! Handles HTTP, files and hashes, never tensors or models.
//!
//! A [`Hub`] lists a repository's files ([`Hub::resolve`]) and downloads the chosen ones
//! ([`Hub::pull`]). A [`Cache`] lists cached models ([`Cache::repos`]), locates one
//! ([`Cache::find`]), and removes them ([`Cache::removal`]). The layout is that of the Python
//! package `huggingface_hub`, whose locks are respected:
//!
//! ```text
//! models--OWNER--NAME/
//!   blobs/HASH                             contents: SHA-256 of large files, git's SHA-1 of others
//!   blobs/HASH.moeflux.incomplete          an incomplete blob
//!   blobs/HASH.moeflux-pieces.incomplete   the list of its complete pieces
//!   snapshots/COMMIT/FILE                  a link to a blob
//!   refs/main                              a commit
//!   trees/COMMIT.json                      all files of the repository at that commit
//!   .moeflux/HASH                          files that were found to have these contents
//! .locks/models--OWNER--NAME/HASH.lock
//! ```

mod error;
mod name;
mod file;
mod settings;
mod stop;
mod hash;
mod listing;
mod selection;
mod cache;
mod check;
mod client;
mod remote;
mod pull;

pub use cache::{Cache, Removal, Repo, Snapshot, State};
pub use check::{PullProgress, Trust};
pub use error::{Error, Result};
pub use listing::{Listing, RepoFile};
pub use name::glob::Glob;
pub use name::quant::Quant;
pub use name::{ModelRef, RepoId};
pub use pull::{N_CONNECTIONS_MAX, PIECE_BYTES, Pulled};
pub use remote::{Hub, Presence, Remote};
pub use selection::FileSelection;
pub use settings::{HubTimeouts, Settings, Token};
pub use stop::StopFlag;
