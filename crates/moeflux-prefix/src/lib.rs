//! A folder of objects, found by the tokens that precede them: the part of a prefix cache that
//! knows files and keys, but neither models nor sessions.
//!
//! **Invariant:** what is read is what was written for exactly these tokens, or a [`Miss`]. The
//! folder never has more bytes than its bound, and a failure of the drive or the end of the process
//! at any moment loses nothing that was committed before.
//!
//! A [`Store`] has three kinds of objects: a *segment* keeps what attention has of a range of
//! positions, a *state* what recurrent layers have after a position, an *answer* what a range of
//! tokens was read as. All are immutable, and their contents are bytes here. An object's name
//! consists of the hashes of all tokens before its start and its end ([`PlaceKey`]), so texts share
//! what they have in common. [`Store::find`] returns the longest chain of segments from a text's
//! first token on.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! key          hashes of tokens, namespaces, owners; names of objects
//! error        failures in one line
//! header       the file of an object, to and from bytes
//! names        names of models, for lists
//! files/       what is asked of a file system; real: this machine's
//! folder       the paths of a folder, its small files, the files of objects
//! budget       bytes written on a day
//! index        what is there, by places; the longest prefix
//! evict        which object leaves first
//! shared       state, and how room is made
//! reader       payloads, compared with their checksums
//! writer       objects that are being written
//! store        the face
//! ```
#![forbid(unsafe_code)]

mod key;
mod error;
mod header;
mod names;
mod files;
mod folder;
mod budget;
mod index;
mod evict;
mod shared;
mod reader;
mod writer;
mod store;

pub use error::{Error, Miss, MissReason, ObjectDamage, Result, WriteRefusal};
pub use files::real::MachineFiles;
pub use files::{Files, FolderEntry, HeldLock, NewFile, OpenedFile, WallClock};
pub use folder::{N_DAMAGED_KEPT, PrefixFolder};
pub use header::{
    CHUNK_BYTES, FIELDS_BYTES, FileLayout, N_TOKENS_MAX, ObjectHeader, PAYLOAD_ALIGN,
};
pub use index::{FoundPrefix, Holding, StateNeed};
pub use key::{
    FORMAT_VERSION, ObjectId, ObjectKind, OwnerId, PlaceHasher, PlaceKey, PrefixNamespace,
    SECRET_BYTES,
};
pub use names::ModelName;
pub use reader::ObjectReader;
pub use shared::{StoreCounts, StoreLimits};
pub use store::{ObjectFacts, PruneRule, Store, StoreRole, VerifyReport};
pub use writer::{FREE_BYTES_MIN, NewObject, ObjectWriter};
