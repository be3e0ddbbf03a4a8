//! The description of a packed table: its shape and its blocks.
//!
//! **Invariant:** as for all packed files: what is returned lies in a tensor of the header.

use serde_json::{Value, json};

use crate::format::dtype::DType;
use crate::format::safetensors::header::HeaderTensor;
use crate::format::{ParseError, quoted};

/// The blocks of a table whose rows are read one by one. Each block has whole rows, and at its end
/// a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Canonical name of the table, without `.weight`.
    pub table: String,
    /// Name of the tensor of blocks.
    pub tensor: String,
    /// Number of blocks.
    pub n_blocks: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Offset of the first block from the end of the header.
    pub begin_bytes: u64,
    /// Rows of the table.
    pub n_rows: usize,
    /// Values of a row.
    pub n_cols: usize,
    /// Type of the values: F32, F16, BF16 or F8_E4M3.
    pub values: DType,
}

impl PackedRows {
    /// Returns the bytes of all blocks.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.n_blocks as u64 * self.block_bytes as u64
    }

    /// Returns the shape for the metadata.
    pub(super) fn to_json(&self) -> Value {
        json!({"shape": [self.n_rows, self.n_cols], "values": self.values.name()})
    }

    /// Parses the description of the only tensor of a file. `shape` is its text in the metadata.
    pub(super) fn parse(
        table: &str,
        shape: &str,
        tensors: &[HeaderTensor],
    ) -> Result<Self, ParseError> {
        let [blocks] = tensors else {
            let n = tensors.len();
            return Err(ParseError(format!("has {n} tensors besides its checksums; expected one")));
        };
        let shape_of_blocks = match (blocks.dtype, blocks.shape.as_slice()) {
            (DType::U8, [n_blocks, block_bytes]) if *n_blocks > 0 && *block_bytes > 0 => {
                Some((*n_blocks, *block_bytes))
            }
            _ => None,
        };
        let Some((n_blocks, block_bytes)) = shape_of_blocks else {
            return Err(ParseError(format!(
                "its tensor `{}` is {} {:?}; expected blocks of rows as U8 [blocks, bytes]",
                quoted(&blocks.name),
                blocks.dtype,
                blocks.shape
            )));
        };
        let wrong = || {
            let expected = "a shape of two numbers, and F32, F16, BF16 or F8_E4M3 values";
            ParseError(format!(
                "`rows` of its metadata is \"{}\"; expected {expected}",
                quoted(shape)
            ))
        };
        let described: Value = serde_json::from_str(shape).map_err(|_| wrong())?;
        let size = |idx: usize| {
            let size = described.get("shape")?.get(idx)?.as_u64()?;
            usize::try_from(size).ok().filter(|size| *size > 0)
        };
        let known = [DType::F32, DType::F16, DType::Bf16, DType::F8E4M3];
        let values = described.get("values").and_then(Value::as_str).and_then(DType::from_name);
        let values = values.filter(|values| known.contains(values)).ok_or_else(wrong)?;
        let (n_rows, n_cols) = size(0).zip(size(1)).ok_or_else(wrong)?;
        Ok(Self {
            table: table.to_owned(),
            tensor: blocks.name.clone(),
            n_blocks,
            block_bytes,
            begin_bytes: blocks.begin_bytes,
            n_rows,
            n_cols,
            values,
        })
    }
}
