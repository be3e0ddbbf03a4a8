//! The types of a GGUF file's tensors by their numbers.
//!
//! **Invariant:** a type that is known has a size; of an unknown one nothing could be checked, so
//! it is refused.

use crate::format::block_type::BlockType;
use crate::format::dtype::DType;

/// Types of single values.
const PLAIN: [(u32, DType); 8] = [
    (0, DType::F32),
    (1, DType::F16),
    (24, DType::I8),
    (25, DType::I16),
    (26, DType::I32),
    (27, DType::I64),
    (28, DType::F64),
    (30, DType::Bf16),
];

/// The type of this number.
pub(super) fn type_of(id: u32) -> Option<DType> {
    let plain = PLAIN.iter().find(|(known, _)| *known == id).map(|(_, dtype)| *dtype);
    plain.or_else(|| BlockType::of_id(id).map(DType::Block))
}

/// The number of a type; `None` for those that only safetensors have.
pub(super) fn id_of(dtype: DType) -> Option<u32> {
    match dtype {
        DType::Block(block) => Some(block.id()),
        plain => PLAIN.iter().find(|(_, known)| *known == plain).map(|(id, _)| *id),
    }
}

/// Values that share bytes, and their bytes.
pub(super) fn block_of(dtype: DType) -> (u64, u64) {
    match dtype {
        DType::Block(block) => (block.n_values(), block.n_bytes()),
        plain => (1, plain.bits().unwrap_or(0) / 8),
    }
}
