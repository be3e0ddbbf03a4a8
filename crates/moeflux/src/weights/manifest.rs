//! Which bytes of a checkpoint make up which matrix, vector and expert.
//!
//! **Invariant:** every extent has the length that its layout requires and lies inside its file as
//! it was when the header was read. This module knows places, never bytes.

use std::ops::Range;

use moeflux_kernels::{BlockKind, FloatKind, MatrixKind, MatrixLayout, ScaleKind};

use crate::error::Result;
use crate::ids::{ExpertIdx, LayerIdx, MatrixId, TableId, VectorId};
use crate::weights::files::{FiniteFormat, part_error};
use crate::weights::resident::ExpertLayout;
use crate::weights::row_table::RowTable;
use crate::weights::synthetic::SyntheticCheckpoint;
use crate::weights::tensors::{FileExtent, PartNames};

/// A resident matrix and where it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixSource {
    /// Canonical name without `.weight`.
    pub name: String,
    /// The matrix in memory: only the selected rows.
    pub layout: MatrixLayout,
    /// Rows of the stored tensor.
    pub stored_rows: usize,
    /// Rows of the stored tensor that are loaded, in this order.
    pub rows: Vec<Range<usize>>,
    /// All codes or values, of all stored rows.
    pub codes: FileExtent,
    /// All scales; `None` where the kind has none.
    pub scales: Option<FileExtent>,
    /// All biases; `None` where the kind has none.
    pub biases: Option<FileExtent>,
    /// Suffixes of its tensors' names.
    pub parts: PartNames,
}

/// A resident vector and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorSource {
    /// Read and widened to f32.
    Stored(StoredVector),
    /// Computed.
    Constant(Vec<f32>),
}

impl VectorSource {
    /// Returns the number of values.
    #[must_use]
    pub fn n_values(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.n_values,
            Self::Constant(values) => values.len(),
        }
    }
}

/// A vector in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredVector {
    /// Name of the tensor in its file.
    pub name: String,
    /// Type of the stored values.
    pub kind: FloatKind,
    /// Number of values.
    pub n_values: usize,
    /// Which of the stored values belong to it.
    pub selection: ValueSelection,
    /// Where they are stored.
    pub extent: FileExtent,
    /// Transformation applied when it is loaded.
    pub transform: ValueTransform,
}

impl StoredVector {
    /// Returns the bytes of all stored values.
    #[must_use]
    pub const fn stored_bytes(&self) -> usize {
        let n_stored = match self.selection {
            ValueSelection::All => self.n_values,
            ValueSelection::EveryOther { .. } => 2 * self.n_values,
        };
        n_stored * self.kind.bytes()
    }
}

/// Which of the stored values a vector has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSelection {
    /// All values.
    All,
    /// Every other value.
    EveryOther {
        /// 0 or 1.
        first: usize,
    },
}

/// Transformation of stored values when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueTransform {
    /// No change.
    None,
    /// Adds 1, for a norm that is stored centred on zero.
    AddOne,
    /// Computes `ln(-x)`, for values stored as `-exp(x)`.
    LogOfNegated,
    /// Divides each frequency of a rope by its value.
    FrequencyDivisor {
        /// Base of the frequencies.
        theta: f64,
    },
}

/// Type of the values of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartRole {
    /// Codes or plain values.
    Codes,
    /// Scales or biases of this type.
    Scales(ScaleKind),
    /// Blocks, which contain their scales.
    Blocks(BlockKind),
}

impl PartRole {
    /// Returns the format of the part's values that must be finite, if there are any.
    #[must_use]
    pub const fn finite(self) -> Option<FiniteFormat> {
        match self {
            Self::Codes => None,
            Self::Scales(kind) => Some(FiniteFormat::of_scales(kind)),
            Self::Blocks(kind) => Some(FiniteFormat::Blocks(kind)),
        }
    }
}

/// One part of all experts of a layer, such as the codes of their gates or the scales of their
/// downs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankPart {
    /// Name in messages: `gate_proj.scales`.
    pub name: String,
    /// Canonical name of the tensor that holds the part of all experts, if there is one.
    pub tensor: Option<String>,
    /// Type of its values.
    pub role: PartRole,
    /// Offset in the expert's record.
    pub record_at: usize,
    /// Bytes for one expert.
    pub len_bytes: usize,
    /// Bytes of the expert's part before these, which belong to other ranks.
    pub n_before_bytes: usize,
    /// Bytes of the expert's part, including those of other ranks.
    pub whole_bytes: usize,
    /// Where each expert's bytes are stored.
    pub offsets: ExpertOffsets,
}

/// Where the bytes of each expert are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpertOffsets {
    /// At equal distances, in one tensor or in packed records.
    Strided {
        /// Index of the file.
        file_idx: usize,
        /// Offset of expert 0.
        first_bytes: u64,
        /// Distance from one expert to the next.
        stride_bytes: u64,
    },
    /// File and offset, by expert.
    Each(Vec<(usize, u64)>),
}

impl BankPart {
    /// Returns where the part of one expert is stored.
    #[must_use]
    pub fn extent(&self, expert: ExpertIdx) -> FileExtent {
        let (file_idx, offset_bytes) = match &self.offsets {
            ExpertOffsets::Strided { file_idx, first_bytes, stride_bytes } => {
                (*file_idx, first_bytes + stride_bytes * expert.0 as u64)
            }
            ExpertOffsets::Each(offsets) => offsets[expert.0],
        };
        FileExtent { file_idx, offset_bytes, len_bytes: self.len_bytes as u64 }
    }
}

/// Where the experts of a packed layer are stored: each in one piece, with its layout in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// Index of the file.
    pub file_idx: usize,
    /// Offset of expert 0: a multiple of [`crate::format::RECORD_ALIGN`].
    pub first_bytes: u64,
    /// Distance from one expert to the next, including padding: a multiple of the same.
    pub record_bytes: usize,
}

impl Records {
    /// Returns the extent of an expert's record, including padding.
    #[must_use]
    pub fn extent(&self, expert: ExpertIdx) -> FileExtent {
        let len_bytes = self.record_bytes as u64;
        let offset_bytes = self.first_bytes + len_bytes * expert.0 as u64;
        FileExtent { file_idx: self.file_idx, offset_bytes, len_bytes }
    }
}

/// The routed experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertBank {
    /// The layer of these experts.
    pub layer: LayerIdx,
    /// Canonical prefix: `model.layers.3.mlp`.
    pub name: String,
    /// Number of experts.
    pub n_experts: usize,
    /// Layout of each expert.
    pub layout: ExpertLayout,
    /// Up to nine parts, in the order of the record; interleaved gate and up count as one matrix.
    pub parts: Vec<BankPart>,
    /// The records, for a packed layer.
    pub records: Option<Records>,
    /// Whether rows of the stored matrices are inputs, with those of gate and up side by side. No
    /// record can be read from there, but `pack` creates records.
    pub is_input_first: bool,
}

impl ExpertBank {
    /// Returns the stored bytes of all experts.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.layout.stored_bytes() * self.n_experts as u64
    }

    /// Returns the canonical name of the tensor that holds the part of an expert, and the index
    /// there of the part's `value_idx`-th scale.
    #[must_use]
    pub fn scale_place(
        &self,
        part: &BankPart,
        expert: ExpertIdx,
        value_idx: usize,
    ) -> (String, u64) {
        let Some(finite) = part.role.finite() else {
            unreachable!("{} of {} are no scales", part.name, self.name)
        };
        let n_before = finite.n_values(part.n_before_bytes);
        match &part.tensor {
            Some(tensor) => {
                let first = finite.n_values(part.whole_bytes) * expert.0;
                (tensor.clone(), (first + n_before + value_idx) as u64)
            }
            None => {
                let tensor = format!("{}.experts.{}.{}", self.name, expert.0, part.name);
                (tensor, (n_before + value_idx) as u64)
            }
        }
    }

    /// Refuses scales, biases and blocks of an expert that are not finite; `bytes` begin after
    /// `skipped` bytes of the part.
    pub(crate) fn check_finite(
        &self,
        part: &BankPart,
        (expert, skipped): (ExpertIdx, usize),
        bytes: &[u8],
    ) -> Result<()> {
        let Some(finite) = part.role.finite() else { return Ok(()) };
        match finite.first_bad(skipped, bytes) {
            None => Ok(()),
            Some(value_idx) => {
                let (tensor, value_idx) = self.scale_place(part, expert, value_idx);
                Err(part_error(&tensor, value_idx))
            }
        }
    }

    /// Returns the bytes of one expert in memory. A packed record keeps its padding, which its
    /// checksum covers as well.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.records.map_or(self.layout.record_bytes(), |records| records.record_bytes)
    }

    /// Returns the bytes of all experts in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.record_bytes() as u64 * self.n_experts as u64
    }
}

/// Integers in a checkpoint that follow from its config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownIntegers {
    /// Name of the tensor in its file.
    pub name: String,
    /// Where they are stored, as I64.
    pub extent: FileExtent,
    /// The values that they must have.
    pub values: Vec<i64>,
}

/// Why tensors of a checkpoint are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// They belong to an image encoder.
    Vision,
    /// They belong to a head that predicts further tokens.
    Mtp,
    /// They select the positions that attention sees; contexts here are so short that it sees all.
    Indexer,
    /// They follow from other tensors or from the config.
    Derived,
}

/// Unused tensors whose names share a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedGroup {
    /// Why they are not used.
    pub reason: SkipReason,
    /// The common part of their names: `model.visual.*`.
    pub pattern: String,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Bytes of these tensors.
    pub n_bytes: u64,
}

/// Where a manifest's extents point to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestOrigin {
    /// Into the files of a checkpoint.
    Checkpoint,
    /// Into a file that could be written, with these tensors in order.
    Synthetic(SyntheticCheckpoint),
}

/// The number and stored bytes of all matrices of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindCount {
    /// How they are stored.
    pub kind: MatrixKind,
    /// Number of matrices, counting every matrix of every expert.
    pub n_matrices: usize,
    /// Bytes of these matrices, including scales and biases.
    pub n_bytes: u64,
}

/// All bound tensors, and the skipped ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Indexed by [`MatrixId`].
    pub matrices: Vec<MatrixSource>,
    /// Indexed by [`VectorId`].
    pub vectors: Vec<VectorSource>,
    /// The layers that have experts, ascending.
    pub banks: Vec<ExpertBank>,
    /// Indexed by [`TableId`]: tables whose rows are read one by one.
    pub tables: Vec<RowTable>,
    /// Integers that are compared with known ones.
    pub integers: Vec<KnownIntegers>,
    /// Tensors that are not used.
    pub skipped: Vec<SkippedGroup>,
    /// Where the extents point to.
    pub origin: ManifestOrigin,
}

impl Manifest {
    /// Returns a matrix.
    #[must_use]
    pub fn matrix(&self, id: MatrixId) -> &MatrixSource {
        &self.matrices[id.0]
    }

    /// Returns a vector.
    #[must_use]
    pub fn vector(&self, id: VectorId) -> &VectorSource {
        &self.vectors[id.0]
    }

    /// Returns a table.
    #[must_use]
    pub fn table(&self, id: TableId) -> &RowTable {
        &self.tables[id.0]
    }

    /// Returns the experts of a layer, if it has any.
    #[must_use]
    pub fn bank(&self, layer: LayerIdx) -> Option<&ExpertBank> {
        self.banks.iter().find(|bank| bank.layer == layer)
    }

    /// Returns whether each layer has one expert only, so that every token uses all of them in
    /// turn.
    #[must_use]
    pub fn is_read_in_turn(&self) -> bool {
        self.banks.iter().all(|bank| bank.n_experts == 1)
    }

    /// Returns the bytes of matrices and vectors in memory.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let matrices = self.matrices.iter().map(|matrix| matrix.layout.total_bytes() as u64);
        let vectors = self.vectors.iter().map(|it| (it.n_values() * size_of::<f32>()) as u64);
        matrices.sum::<u64>() + vectors.sum::<u64>()
    }

    /// Returns the stored bytes of all experts of all layers.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        self.banks.iter().map(ExpertBank::stored_bytes).sum()
    }

    /// Returns the bytes of all tables.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.tables.iter().map(RowTable::total_bytes).sum()
    }

    /// Returns the matrices by kind, largest total first.
    #[must_use]
    pub fn kinds(&self) -> Vec<KindCount> {
        let mut counts: Vec<KindCount> = Vec::new();
        let mut add = |layout: &MatrixLayout, n_matrices: usize| {
            let n_bytes = layout.total_bytes() as u64 * n_matrices as u64;
            match counts.iter_mut().find(|count| count.kind == layout.kind) {
                Some(count) => {
                    count.n_matrices += n_matrices;
                    count.n_bytes += n_bytes;
                }
                None => counts.push(KindCount { kind: layout.kind, n_matrices, n_bytes }),
            }
        };
        for matrix in &self.matrices {
            add(&matrix.layout, 1);
        }
        for bank in &self.banks {
            for span in [bank.layout.gate, bank.layout.up, bank.layout.down] {
                add(&span.layout, bank.n_experts);
            }
        }
        counts.sort_by_key(|count| std::cmp::Reverse(count.n_bytes));
        counts
    }
}
