//! The types of a tensor's values, and their sizes.
//!
//! **Invariant:** every known type has a size. An unknown type is refused, because its lengths
//! cannot be checked. More types are known than used: some belong to tensors that are skipped.

pub(super) mod block_type;

use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::format::dtype::block_type::BlockType;
use crate::format::quoted;

/// The type of a tensor's values, by its name in safetensors. Block types are those of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// `F32`.
    F32,
    /// `F16`.
    F16,
    /// `BF16`.
    Bf16,
    /// `F8_E4M3`.
    F8E4M3,
    /// `U32`.
    U32,
    /// `BOOL`.
    Bool,
    /// `U8`.
    U8,
    /// `I8`.
    I8,
    /// `F8_E5M2`.
    F8E5M2,
    /// `F8_E8M0`.
    F8E8M0,
    /// `F4`, two values a byte.
    F4,
    /// `F6_E2M3`, four values in three bytes.
    F6E2M3,
    /// `F6_E3M2`, four values in three bytes.
    F6E3M2,
    /// `I16`.
    I16,
    /// `U16`.
    U16,
    /// `I32`.
    I32,
    /// `I64`.
    I64,
    /// `U64`.
    U64,
    /// `F64`.
    F64,
    /// `C64`, two `F32`.
    C64,
    /// Blocks of values, in GGUF only.
    Block(BlockType),
}

/// All types of safetensors, with name and bits per value.
const DTYPES: [(DType, &str, u64); 20] = [
    (DType::F32, "F32", 32),
    (DType::F16, "F16", 16),
    (DType::Bf16, "BF16", 16),
    (DType::F8E4M3, "F8_E4M3", 8),
    (DType::U32, "U32", 32),
    (DType::Bool, "BOOL", 8),
    (DType::U8, "U8", 8),
    (DType::I8, "I8", 8),
    (DType::F8E5M2, "F8_E5M2", 8),
    (DType::F8E8M0, "F8_E8M0", 8),
    (DType::F4, "F4", 4),
    (DType::F6E2M3, "F6_E2M3", 6),
    (DType::F6E3M2, "F6_E3M2", 6),
    (DType::I16, "I16", 16),
    (DType::U16, "U16", 16),
    (DType::I32, "I32", 32),
    (DType::I64, "I64", 64),
    (DType::U64, "U64", 64),
    (DType::F64, "F64", 64),
    (DType::C64, "C64", 64),
];

impl DType {
    /// Returns the type with this name in safetensors.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        DTYPES.iter().find(|(_, known, _)| *known == name).map(|(dtype, ..)| *dtype)
    }

    /// Returns the name in safetensors, or ggml's name for blocks.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Block(block) => block.name(),
            plain => plain.row().1,
        }
    }

    /// Returns the bits of one value, or `None` for blocks.
    #[must_use]
    pub fn bits(self) -> Option<u64> {
        match self {
            Self::Block(_) => None,
            plain => Some(plain.row().2),
        }
    }

    fn row(self) -> (Self, &'static str, u64) {
        let row = DTYPES.iter().find(|(dtype, ..)| *dtype == self).copied();
        row.expect("DTYPES lists every plain DType")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DTypeVisitor)
    }
}

struct DTypeVisitor;

impl Visitor<'_> for DTypeVisitor {
    type Value = DType;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a type")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<DType, E> {
        DType::from_name(name).ok_or_else(|| E::custom(format!("unknown type `{}`", quoted(name))))
    }
}
