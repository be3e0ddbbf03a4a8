//! A folder of safetensors files as one table of tensors.
//!
//! **Invariant:** every entry lies inside its file, and no two have the same canonical name.
//! Reads headers only, and does not know what a model needs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::safetensors::DType;
use crate::error::Result;

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name, as in the file.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Which of [`Checkpoint::files`].
    pub file_idx: usize,
    /// First byte, from the start of the file.
    pub offset_bytes: u64,
    /// Bytes of all values.
    pub len_bytes: u64,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length when it was opened.
    pub len_bytes: u64,
    /// XXH3 of the header's bytes: tells one checkpoint from another of the same shapes.
    pub header_hash: u64,
}

/// A folder's table of contents.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder.
    pub dir: PathBuf,
    /// Its files, in order of their names.
    pub files: Vec<ShardFile>,
    /// Its tensors by canonical name.
    pub tensors: BTreeMap<String, TensorEntry>,
}

impl Checkpoint {
    /// Reads the headers of all shards of a folder.
    ///
    /// # Errors
    ///
    /// Names the file and the tensor that is missing, double, cut off or malformed.
    pub fn open(dir: &Path) -> Result<Self> {
        let _ = dir;
        unimplemented!()
    }
}

/// The name a tensor has in a checkpoint of the language model alone: `model.layers.0...`,
/// `model.embed_tokens.weight`, `model.norm.weight`, `lm_head.weight`.
#[must_use]
pub fn canonical_name(name: &str) -> Cow<'_, str> {
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        Cow::Owned(format!("model.{rest}"))
    } else {
        Cow::Borrowed(name.strip_prefix("language_model.").unwrap_or(name))
    }
}
