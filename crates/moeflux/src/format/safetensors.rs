//! The header of a safetensors file: names, types, shapes and byte ranges.
//!
//! **Invariant:** the tensors that come out cover the data of the file exactly, in order, without
//! hole or overlap, and each has as many bytes as its shape and type ask for.
//! Our own parser and not the `safetensors` crate: that one wants the whole file in memory or
//! mapped, and its errors do not name the tensor. Tensors' bytes are never read here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use moeflux_io::ReadFile;
use serde::de::{self, DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{quoted, read_range};
use crate::error::{Error, Result};

/// The limit of the reference implementation. A 397B checkpoint with one name per expert has 35 MB.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The length of the header, before it.
const PREFIX_BYTES: u64 = 8;

/// More dimensions than any tensor has; keeps a hostile shape from growing.
const RANK_MAX: usize = 8;

/// The type of a tensor's values, by its name in safetensors.
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
}

/// Every known type, with its name and the bits of a value.
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
    /// The type of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        DTYPES.iter().find(|(_, known, _)| *known == name).map(|(dtype, ..)| *dtype)
    }

    /// The name in safetensors.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bits of one value.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.row().2
    }

    fn row(self) -> (Self, &'static str, u64) {
        let row = DTYPES.iter().find(|(dtype, ..)| *dtype == self).copied();
        row.expect("DTYPES lists every DType")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its name, as in the file.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// First byte, from the end of the header.
    pub begin_bytes: u64,
    /// Bytes of all values.
    pub len_bytes: u64,
}

/// What a header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// In order of their bytes.
    pub tensors: Vec<HeaderTensor>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// What is wrong with a header, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderProblem(pub String);

impl fmt::Display for HeaderProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
