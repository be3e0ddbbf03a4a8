//! Tensors that a source is asked for, and those found there.
//!
//! **Invariant:** plain data and queries on it, independent of the source and its user.

use moeflux_kernels::{BlockKind, FloatKind, MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::format::{BlockType, Checkpoint, DType, PackedBank, ShardFile, TensorEntry};

/// A run of bytes in one of a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Index into [`crate::format::Checkpoint::files`].
    pub file_idx: usize,
    /// Offset of the first byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
}

/// A required matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequiredMatrix<'n> {
    /// Name without `.weight`, which scales and overrides also use.
    pub(super) base: &'n str,
    /// Number of matrices in a tensor of three dimensions; `None` for a tensor of two.
    pub(super) n_stack: Option<usize>,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
}

impl RequiredMatrix<'_> {
    /// Refuses sizes that no file can have, so that later products of them cannot overflow.
    pub(super) fn check_size(&self) -> Result<()> {
        let n_rows = self.n_rows.saturating_mul(self.n_stack.unwrap_or(1));
        let layout = MatrixLayout::new(MatrixKind::Float(FloatKind::F32), n_rows, self.n_cols);
        layout.map(drop).map_err(|error| Error::tensor(self.base, error.to_string()))
    }

    /// Returns the shape of a part whose single matrix has `n_rows` and `n_cols`.
    pub(super) fn shape(&self, n_rows: usize, n_cols: usize) -> Vec<usize> {
        self.n_stack.into_iter().chain([n_rows, n_cols]).collect()
    }
}

/// Suffixes of a matrix's name for the tensors of its parts; empty for parts that its kind lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartNames {
    /// Suffix of codes or values.
    pub codes: &'static str,
    /// Suffix of scales.
    pub scales: &'static str,
    /// Suffix of biases.
    pub biases: &'static str,
}

impl PartNames {
    /// Suffixes of a matrix without scales.
    pub const PLAIN: Self = Self { codes: "weight", scales: "", biases: "" };
}

/// A tensor that exists, or could exist.
#[derive(Clone, Debug)]
pub(super) struct FoundTensor {
    /// Name in the source, for messages.
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) extent: FileExtent,
    /// File that states what is required, for messages.
    pub(super) described_by: &'static str,
}

impl FoundTensor {
    pub(super) fn of(entry: &TensorEntry, checkpoint: &Checkpoint) -> Self {
        Self {
            name: entry.name.clone(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            extent: FileExtent {
                file_idx: entry.file_idx,
                offset_bytes: entry.offset_bytes,
                len_bytes: entry.len_bytes,
            },
            described_by: checkpoint.described_by(),
        }
    }

    /// Creates an error about this tensor.
    pub(super) fn error(&self, problem: impl Into<String>) -> Error {
        Error::tensor(&self.name, problem)
    }

    /// Returns the float type of the values, if it is one that vectors and scales may have.
    pub(super) fn float_kind(&self) -> Option<FloatKind> {
        float_kind(self.dtype)
    }

    /// Checks the shape.
    pub(super) fn expect_shape(&self, shape: &[usize]) -> Result<()> {
        // A matrix of one row may lack that dimension.
        let is_row = matches!(shape, [1, n_cols] if self.shape == [*n_cols]);
        if self.shape == shape || is_row {
            return Ok(());
        }
        let (found, asking) = (&self.shape, self.described_by);
        Err(self.error(format!("has shape {found:?}, but {asking} requires {shape:?}")))
    }
}

/// A packed layer that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundBank<'a> {
    pub(super) file: &'a ShardFile,
    pub(super) file_idx: usize,
    pub(super) bank: &'a PackedBank,
}

/// Returns the float type of such values, if it is one that vectors and scales may have.
pub(super) const fn float_kind(dtype: DType) -> Option<FloatKind> {
    match dtype {
        DType::F32 => Some(FloatKind::F32),
        DType::F16 => Some(FloatKind::F16),
        DType::Bf16 => Some(FloatKind::Bf16),
        _ => None,
    }
}

/// Returns the tensor type of a float.
pub(crate) const fn dtype_of(kind: FloatKind) -> DType {
    match kind {
        FloatKind::F32 => DType::F32,
        FloatKind::F16 => DType::F16,
        FloatKind::Bf16 => DType::Bf16,
    }
}

/// Returns the type of such blocks; `None` for those that no GGUF file has.
pub(crate) fn block_type(kind: BlockKind) -> Option<BlockType> {
    BlockType::all().find(|block| block_kind(*block) == Some(kind))
}

/// Returns the kernels' kind for blocks of this type; `None` for those that no kernel reads.
#[must_use]
pub fn block_kind(block: BlockType) -> Option<BlockKind> {
    Some(match block {
        BlockType::Q4_0 => BlockKind::Q4_0,
        BlockType::Q4_1 => BlockKind::Q4_1,
        BlockType::Q5_0 => BlockKind::Q5_0,
        BlockType::Q5_1 => BlockKind::Q5_1,
        BlockType::Q8_0 => BlockKind::Q8_0,
        BlockType::Q2_K => BlockKind::Q2_K,
        BlockType::Q3_K => BlockKind::Q3_K,
        BlockType::Q4_K => BlockKind::Q4_K,
        BlockType::Q5_K => BlockKind::Q5_K,
        BlockType::Q6_K => BlockKind::Q6_K,
        BlockType::IQ2_XXS => BlockKind::IQ2_XXS,
        BlockType::IQ2_XS => BlockKind::IQ2_XS,
        BlockType::IQ2_S => BlockKind::IQ2_S,
        BlockType::IQ3_XXS => BlockKind::IQ3_XXS,
        BlockType::IQ3_S => BlockKind::IQ3_S,
        BlockType::IQ4_NL => BlockKind::IQ4_NL,
        BlockType::IQ4_XS => BlockKind::IQ4_XS,
        BlockType::MXFP4 => BlockKind::MXFP4,
        BlockType::Q8_1
        | BlockType::Q8_K
        | BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::TQ1_0
        | BlockType::TQ2_0
        | BlockType::NVFP4
        | BlockType::Q1_0
        | BlockType::Q2_0 => return None,
    })
}
