//! Maps the type numbers of GGUF to types.
//!
//! **Invariant:** every known type has a size. An unknown type is refused, because its lengths
//! cannot be checked.

use crate::format::dtype::DType;
use crate::format::dtype::block_type::BlockType;

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

/// Returns the type with this number.
pub(super) fn type_of(id: u32) -> Option<DType> {
    let plain = PLAIN.iter().find(|(known, _)| *known == id).map(|(_, dtype)| *dtype);
    plain.or_else(|| BlockType::of_id(id).map(DType::Block))
}

/// Returns the number of a type; `None` for types that only safetensors has.
pub(super) fn id_of(dtype: DType) -> Option<u32> {
    match dtype {
        DType::Block(block) => Some(block.id()),
        plain => PLAIN.iter().find(|(_, known)| *known == plain).map(|(id, _)| *id),
    }
}

/// Returns the values per block and the bytes per block. A plain type has blocks of one value.
pub(super) fn block_of(dtype: DType) -> (u64, u64) {
    match dtype {
        DType::Block(block) => (block.n_values(), block.n_bytes()),
        plain => (1, plain.bits().unwrap_or(0) / 8),
    }
}
