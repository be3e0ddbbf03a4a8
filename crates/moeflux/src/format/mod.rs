//! Parses files into tables of contents: the place of each tensor and the keys of `config.json`.
//!
//! **Invariant:** every length, offset and count returned was checked against the file it
//! describes. Nothing here reads tensor data or knows the meaning of a tensor.
#![deny(clippy::indexing_slicing)]

mod dtype;
mod safetensors;
mod names;
mod npy;
mod packed;
mod read;
mod json;
pub(crate) mod gguf;
mod config;
mod checkpoint;
mod sums;
#[cfg(test)]
mod tests;

pub(crate) use checkpoint::file_header::{HEADER_BYTES_MAX, header_bytes, is_packed};
pub use checkpoint::shard::ShardFile;
pub use checkpoint::{Checkpoint, Gguf, PackedFolder, TensorEntry};
pub use config::{ConfigSection, RawConfig};
pub use dtype::DType;
pub use dtype::block_type::BlockType;
pub use gguf::{
    GgufHeader, GgufHeaderError, Metadata, MetadataValue, NewGguf, NewPairs, NewValue, gguf_at,
    new_gguf, parse_gguf,
};
pub(crate) use gguf::{in_gguf, pairs_of};
pub(crate) use json::word;
pub use json::{parse_json, write_json};
pub(crate) use names::canonical_module;
pub use npy::NpyWriter;
pub use packed::rows::PackedRows;
pub use packed::{
    PACK_JOURNAL, PACK_METADATA, PACK_SUMS_NAME, PackedBank, PackedFile, PackedKind, PackedMatrix,
    PackedNorms, PackedRole, PackedSpread, RECORD_ALIGN, SumTable, packed_metadata, parse_packed,
};
pub use read::read_file;
pub(crate) use read::read_file_if_there;
pub(crate) use read::{read_into, read_range};
pub use safetensors::header::{HeaderTensor, SafetensorsHeader, parse_header};
pub use safetensors::index::{ShardIndex, parse_index};
pub use safetensors::new_file::{NewTensor, new_header, new_index};
pub use sums::{
    AlteredDocument, CheckpointSums, DocumentSum, FileSums, PackSums, SUMS_FILE_NAME, SumUnit,
    SumsDocument, TensorUnit, tensor_units,
};
pub(crate) use sums::{PackedTable, own_sum};

use std::fmt;

/// A one-line description of an error in a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(pub String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const FETCH_AGAIN: &str = "the download is incomplete, fetch it again";

/// Maximum characters of an untrusted name or value that a message repeats.
const QUOTED_CHARS_MAX: usize = 160;

/// Returns `text` as one printable line of bounded length.
fn quoted(text: &str) -> String {
    let mut line: String =
        text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        line.push_str("...");
    }
    line
}
