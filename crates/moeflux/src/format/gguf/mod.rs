//! GGUF files: metadata and a table of contents.
//!
//! **Invariant:** see [`crate::format`]. Supports versions 2 and 3, little-endian.

mod kind;
mod metadata;
mod cursor;
mod new;
mod header;
mod names;
mod files;
#[cfg(test)]
pub(crate) mod builder;
#[cfg(test)]
mod tests;

pub use cursor::GgufHeaderError;
pub use files::gguf_at;
pub(crate) use files::{GgufFile, read_all, read_metadata};
pub(crate) use header::pairs_of;
pub use header::{GgufHeader, parse_gguf};
pub use metadata::{Metadata, MetadataValue};
pub(crate) use names::{canonical, in_gguf};
pub use new::{NewGguf, NewPairs, NewValue, new_gguf};
