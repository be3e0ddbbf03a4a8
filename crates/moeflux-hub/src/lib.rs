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
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! error        errors in one line
//! name/        names that become parts of paths; link: of pages; quant: of GGUF files; glob
//! file         small files, and bytes at offsets
//! settings     the variables of huggingface_hub
//! stop         a flag that wakes waiting threads
//! hash         the hashes that name files
//! listing      all files of a repository
//! selection    which of them are chosen
//! cache/       the folder of the cache
//!   layout, lock, link       its paths, locks, and files of snapshots
//!   journal                  the list of complete pieces
//!   scan, removal            what is there, and how it goes
//! check/       files against their hashes; mark: those that were compared
//! client       one request at a time
//! remote       a repository of the hub, and what of it is here
//! pull/        downloads
//!   download, fetch, queue   one in progress, a piece of it, the work of all connections
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
