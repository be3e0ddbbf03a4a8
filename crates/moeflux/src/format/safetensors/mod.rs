//! Safetensors as bytes: the header of a file, the index of a set of files, and those of new files.
//!
//! **Invariant:** pure functions of bytes. Files are opened by `crate::format::checkpoint`.

pub(super) mod header;
pub(super) mod index;
pub(super) mod new_file;
