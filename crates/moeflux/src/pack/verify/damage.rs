//! Damaged parts of a model and their messages.
//!
//! **Invariant:** each message is one line with the file and its bytes.

use std::fmt;
use std::path::PathBuf;

use moeflux_io::OneLine;

use crate::ids::{ExpertIdx, LayerIdx};

/// The part of a model that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamagedPart {
    /// A routed expert.
    Expert(LayerIdx, ExpertIdx),
    /// A tensor, by its name in the file.
    Tensor(String),
    /// A file's header or its checksums.
    Checksums,
    /// An intact weight file of another pack.
    ForeignFile,
    /// A small file: config, index, tokenizer, template.
    Document,
    /// The checksums of the small files.
    PackSums,
}

impl fmt::Display for DamagedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expert(layer, expert) => write!(f, "layer {} expert {}", layer.0, expert.0),
            Self::Tensor(name) => write!(f, "tensor `{}`", OneLine::name(name)),
            Self::Checksums => f.write_str("header or checksums"),
            Self::ForeignFile => f.write_str("file of another pack"),
            Self::Document => f.write_str("small file"),
            Self::PackSums => f.write_str("checksums of the pack"),
        }
    }
}

/// Damaged bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The part that they belong to.
    pub part: DamagedPart,
    /// Path of the file.
    pub file: PathBuf,
    /// Offset of the first byte.
    pub first_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The evidence of the damage.
    pub problem: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, file, first_bytes, len_bytes, problem } = self;
        let end = first_bytes + len_bytes;
        write!(f, "{part}: {} bytes {first_bytes} to {end}: {problem}", file.display())
    }
}
