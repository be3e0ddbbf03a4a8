//! The tensors of a source by name, and which of them were taken.
//!
//! **Invariant:** a tensor is taken at most once. A synthetic source creates tensors before they
//! are taken, so both kinds are bound by the same code.

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::format::{Checkpoint, DType, PackedRows};
use crate::spec::Quantisation;
use crate::weights::synthetic::SyntheticBuilder;
use crate::weights::tensors::{FoundBank, FoundTensor, RequiredMatrix};

/// Tensors by canonical name.
#[derive(Debug)]
pub(super) enum TensorTable<'a> {
    /// The tensors of a checkpoint, and the names taken; for packed layers, the prefixes.
    Stored { checkpoint: &'a Checkpoint, taken: HashSet<&'a str> },
    /// The synthetic tensors created so far.
    Synthetic(SyntheticBuilder<'a>),
}

impl<'a> TensorTable<'a> {
    pub(super) fn stored(checkpoint: &'a Checkpoint) -> Self {
        Self::Stored { checkpoint, taken: HashSet::new() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Stored { checkpoint, .. } => checkpoint.tensors.contains_key(name),
            Self::Synthetic(builder) => builder.would_have(name),
        }
    }

    /// Returns whether there already is a tensor of this canonical name: a synthetic one only once
    /// it was created.
    pub(super) fn has_stored(&self, name: &str) -> bool {
        self.dtype(name).is_some()
    }

    /// Returns the type of a tensor that already exists.
    pub(super) fn dtype(&self, name: &str) -> Option<DType> {
        match self {
            Self::Stored { checkpoint, .. } => checkpoint.tensors.get(name).map(|it| it.dtype),
            Self::Synthetic(builder) => builder.dtype(name),
        }
    }

    pub(super) fn is_synthetic(&self) -> bool {
        matches!(self, Self::Synthetic(_))
    }

    /// Returns the file that states what is required, for messages.
    pub(super) fn described_by(&self) -> &'static str {
        match self {
            Self::Stored { checkpoint, .. } => checkpoint.described_by(),
            Self::Synthetic(_) => "config.json",
        }
    }

    /// Returns whether the tensors are as converters to GGUF write them.
    pub(super) fn is_gguf(&self) -> bool {
        matches!(self, Self::Stored { checkpoint, .. } if checkpoint.gguf.is_some())
    }

    /// Returns the error about a missing tensor.
    pub(super) fn missing(&self, name: &str) -> Error {
        match self {
            Self::Stored { checkpoint, .. } => missing(checkpoint, name),
            Self::Synthetic(_) => unreachable!("an imagined checkpoint has whatever is asked for"),
        }
    }

    /// Takes a tensor; it cannot be taken again.
    pub(super) fn take(&mut self, name: &str) -> Result<FoundTensor> {
        match self {
            Self::Stored { checkpoint, taken } => {
                let Some((name, entry)) = checkpoint.tensors.get_key_value(name) else {
                    return Err(missing(checkpoint, name));
                };
                assert!(taken.insert(name), "tensor `{name}` is bound twice");
                Ok(FoundTensor::of(entry, checkpoint))
            }
            Self::Synthetic(builder) => Ok(builder.take(name)),
        }
    }

    /// Takes the records of a packed layer; they cannot be taken again.
    pub(super) fn take_bank(&mut self, prefix: &str) -> Option<FoundBank<'a>> {
        let Self::Stored { checkpoint, taken } = self else { return None };
        let packed = checkpoint.packed.as_ref()?;
        let (prefix, (file_idx, bank)) = packed.banks.get_key_value(prefix)?;
        assert!(taken.insert(prefix), "records of `{prefix}` are bound twice");
        let file = &checkpoint.files[*file_idx];
        Some(FoundBank { file, file_idx: *file_idx, bank })
    }

    /// Takes the blocks of a packed table, with their file; they cannot be taken again.
    pub(super) fn take_rows(&mut self, table: &str) -> Option<(usize, &'a PackedRows)> {
        let Self::Stored { checkpoint, taken } = self else { return None };
        let packed = checkpoint.packed.as_ref()?;
        let (table, (file_idx, rows)) = packed.tables.get_key_value(table)?;
        assert!(taken.insert(table), "rows of `{table}` are bound twice");
        Some((*file_idx, rows))
    }

    /// Returns the offset of the data of a file.
    pub(super) fn data_at(&self, file_idx: usize) -> u64 {
        match self {
            Self::Stored { checkpoint, .. } => checkpoint.files[file_idx].data_at,
            Self::Synthetic(_) => 0,
        }
    }

    /// Creates the tensors of a matrix if the source is synthetic, and records their quantisation.
    pub(super) fn create_matrix(
        &mut self,
        quantisation: &mut Quantisation,
        required: &RequiredMatrix<'_>,
    ) {
        if let Self::Synthetic(builder) = self {
            let params = builder.matrix(required);
            quantisation.overrides.insert(required.base.to_owned(), params);
        }
    }
}

fn missing(checkpoint: &Checkpoint, name: &str) -> Error {
    let problem = match checkpoint.gguf {
        Some(_) => "is missing: the file is incomplete, or its metadata belong to another model",
        None => {
            "is missing: the checkpoint is incomplete, or its config.json belongs to another \
                 model"
        }
    };
    Error::tensor(checkpoint.name_here(name), problem)
}
