//! What is damaged, and how that is said.
//!
//! **Invariant:** a line each, with the file and its bytes.

use std::fmt;
use std::path::PathBuf;

use moeflux_io::OneLine;

use crate::ids::{ExpertIdx, LayerIdx};

/// What is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamagedPart {
    /// A routed expert.
    Expert(LayerIdx, ExpertIdx),
    /// A tensor, by its name in the file.
    Tensor(String),
    /// A file's header or its checksums.
    Checksums,
    /// A file of weights that is whole, but of another pack.
    Stranger,
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
            Self::Stranger => f.write_str("file of another pack"),
            Self::Document => f.write_str("small file"),
            Self::PackSums => f.write_str("checksums of the pack"),
        }
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What they belong to.
    pub part: DamagedPart,
    /// Where they are.
    pub file: PathBuf,
    /// The first of them.
    pub first_bytes: u64,
    /// How many there are.
    pub len_bytes: u64,
    /// How it is known.
    pub problem: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, file, first_bytes, len_bytes, problem } = self;
        let end = first_bytes + len_bytes;
        write!(f, "{part}: {} bytes {first_bytes} to {end}: {problem}", file.display())
    }
}
