//! The header of a GGUF file: metadata, and names, types, shapes and byte ranges of its tensors.
//!
//! **Invariant:** every count, length, offset and alignment returned was checked against the file's
//! length; tensors are in order without overlap, each in whole blocks of its type. The parser is a
//! pure function of bytes and a length, and is fuzzed. Crates that read GGUF are not used because
//! they allocate by counts that the file claims. Tensor data is never read here.

use std::collections::{BTreeMap, HashSet};

use super::cursor::{ALIGNMENT, GgufHeaderError, HeaderCursor, MAGIC};
use super::kind::{block_of, type_of};
use super::metadata::{Metadata, MetadataValue};
use super::new::NewPairs;
use crate::error::grouped;
use crate::format::safetensors::header::HeaderTensor;
use crate::format::{DType, FETCH_AGAIN, quoted};

const ALIGNMENT_KEY: &str = "general.alignment";
/// Upper bound on dimensions, as in ggml.
const RANK_MAX: u32 = 4;
/// Upper bound on the alignment, far above the needs of any drive or device. All bytes before the
/// data are read at every open, so the padding after the header must be short.
const ALIGNMENT_MAX: u64 = 1 << 20;
/// Upper bound on elements of an array: enough for any vocabulary with two or three merges per
/// entry. An element of one byte takes eight in memory.
const ELEMENTS_MAX: u64 = 1 << 25;
/// Offset of the keys: after magic, version and two counts.
const PAIRS_AT: u64 = 4 + 4 + 8 + 8;
/// Minimum length of a key: its length and type, and one byte.
const PAIR_BYTES_MIN: u64 = 8 + 4 + 1;
/// Minimum length of a tensor's entry: lengths of name and shape, type and offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// The contents of a GGUF header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufHeader {
    /// Values by key.
    pub metadata: Metadata,
    /// Tensors in byte order, with offsets from `data_at`.
    pub tensors: Vec<HeaderTensor>,
    /// Offset of the data.
    pub data_at: u64,
    /// End of the last tensor: the minimum length of the file.
    pub end_bytes: u64,
}

/// Parses the first `bytes` of a file of `len_bytes`. The caller must check that the file reaches
/// `end_bytes`; for a split file it can then report all truncated parts together.
///
/// # Errors
///
/// [`GgufHeaderError::Incomplete`] if the header extends past `bytes`;
/// [`GgufHeaderError::Malformed`] with the key or tensor at fault.
pub fn parse_gguf(bytes: &[u8], len_bytes: u64) -> Result<GgufHeader, GgufHeaderError> {
    if len_bytes < MAGIC.len() as u64 {
        return Err(GgufHeaderError::malformed(format!(
            "has only {len_bytes} bytes: {FETCH_AGAIN}"
        )));
    }
    let mut cursor = HeaderCursor::new(bytes, len_bytes);
    if cursor.array::<4>("its first bytes")? != *MAGIC {
        return Err(GgufHeaderError::malformed(
            "does not begin with `GGUF`: this is not a GGUF file",
        ));
    }
    check_version(cursor.u32("its version")?)?;
    let n_tensors = cursor.u64("the number of its tensors")?;
    let n_pairs = cursor.u64("the number of its keys")?;
    check_count(&cursor, n_pairs, PAIR_BYTES_MIN, "its keys")?;
    let metadata = metadata(&mut cursor, n_pairs)?;
    let alignment = alignment(&metadata)?;
    check_count(&cursor, n_tensors, TENSOR_BYTES_MIN, "its tensors")?;
    let mut tensors = Vec::with_capacity(cursor.capacity(n_tensors, TENSOR_BYTES_MIN));
    for tensor_idx in 0..n_tensors {
        tensors.push(tensor(&mut cursor, tensor_idx)?);
    }
    check_names(&tensors)?;
    let data_at = cursor.at().checked_next_multiple_of(alignment);
    let data_at =
        data_at.ok_or_else(|| GgufHeaderError::malformed("has an impossible alignment"))?;
    tensors.sort_by_key(|tensor| (tensor.begin_bytes, tensor.len_bytes));
    let data_bytes = check_offsets(&tensors, alignment)?;
    let end_bytes = data_at.checked_add(data_bytes);
    let end_bytes =
        end_bytes.ok_or_else(|| GgufHeaderError::malformed("has tensors larger than any file"))?;
    Ok(GgufHeader { metadata, tensors, data_at, end_bytes })
}

/// Returns the keys in a file's first bytes, as they are stored.
///
/// # Errors
///
/// As [`parse_gguf`].
pub(crate) fn pairs_of(bytes: &[u8]) -> Result<NewPairs, GgufHeaderError> {
    let mut cursor = HeaderCursor::new(bytes, bytes.len() as u64);
    cursor.take(PAIRS_AT - size_of::<u64>() as u64, "its first bytes")?;
    let n_pairs = cursor.u64("the number of its keys")?;
    metadata(&mut cursor, n_pairs)?;
    let pairs = usize::try_from(PAIRS_AT).ok().zip(usize::try_from(cursor.at()).ok());
    let pairs = pairs.and_then(|(first, end)| bytes.get(first..end));
    Ok(NewPairs::of_bytes(pairs.unwrap_or_default(), n_pairs))
}

fn check_version(version: u32) -> Result<(), GgufHeaderError> {
    match version {
        2 | 3 => Ok(()),
        1 => Err(GgufHeaderError::malformed(
            "is GGUF version 1 (2023), which is not supported: convert the model again",
        )),
        _ if version & 0xffff == 0 && version != 0 => Err(GgufHeaderError::malformed(
            "is a big-endian GGUF file, which is not supported: use the little-endian one",
        )),
        _ => Err(GgufHeaderError::malformed(format!(
            "is GGUF version {version}; versions 2 and 3 are supported"
        ))),
    }
}

fn check_count(
    cursor: &HeaderCursor<'_>,
    n: u64,
    bytes_min: u64,
    what: &str,
) -> Result<(), GgufHeaderError> {
    cursor.check_room(n.saturating_mul(bytes_min), &format!("{what} ({})", grouped(n)))
}

fn metadata(cursor: &mut HeaderCursor<'_>, n_pairs: u64) -> Result<Metadata, GgufHeaderError> {
    let mut values = BTreeMap::new();
    for pair_idx in 0..n_pairs {
        let key = cursor.text(&format!("the name of key {pair_idx}"))?;
        let what = format!("key `{}`", quoted(&key));
        let type_id = cursor.u32(&what)?;
        let value = value(cursor, type_id, &what)?;
        if values.insert(key, value).is_some() {
            return Err(GgufHeaderError::malformed(format!("has {what} twice")));
        }
    }
    Ok(Metadata { values })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufHeaderError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(MetadataValue::U64(value)) if value.is_power_of_two() && *value <= ALIGNMENT_MAX => {
            Ok(*value)
        }
        Some(_) => Err(GgufHeaderError::malformed(format!(
            "has a `{ALIGNMENT_KEY}` that is not a power of two up to {ALIGNMENT_MAX}"
        ))),
    }
}

const STRING_TYPE: u32 = 8;
const ARRAY_TYPE: u32 = 9;

fn value(
    cursor: &mut HeaderCursor<'_>,
    type_id: u32,
    what: &str,
) -> Result<MetadataValue, GgufHeaderError> {
    match type_id {
        STRING_TYPE => cursor.text(what).map(MetadataValue::String),
        ARRAY_TYPE => array(cursor, what),
        _ => Ok(match scalar(cursor, type_id, what)? {
            Scalar::Bool(value) => MetadataValue::Bool(value),
            Scalar::Float(value) => MetadataValue::F64(value),
            Scalar::Integer(value) => match u64::try_from(value) {
                Ok(value) => MetadataValue::U64(value),
                Err(_) => MetadataValue::I64(value),
            },
            Scalar::Large(value) => MetadataValue::U64(value),
        }),
    }
}

fn array(cursor: &mut HeaderCursor<'_>, what: &str) -> Result<MetadataValue, GgufHeaderError> {
    let type_id = cursor.u32(what)?;
    let n = cursor.u64(what)?;
    let element_bytes = match type_id {
        STRING_TYPE => 8,
        ARRAY_TYPE => {
            let problem = format!("has an array of arrays at {what}, which is not supported");
            return Err(GgufHeaderError::malformed(problem));
        }
        _ => scalar_bytes(type_id, what)?,
    };
    check_count(cursor, n, element_bytes, what)?;
    if n > ELEMENTS_MAX {
        let problem = format!("has {n} elements at {what}; the limit is {ELEMENTS_MAX}");
        return Err(GgufHeaderError::malformed(problem));
    }
    let capacity = cursor.capacity(n, element_bytes);
    if type_id == STRING_TYPE {
        let mut texts = Vec::with_capacity(capacity);
        for _ in 0..n {
            texts.push(cursor.text(what)?);
        }
        return Ok(MetadataValue::Strings(texts));
    }
    let (mut bools, mut integers, mut floats) = (Vec::new(), Vec::new(), Vec::new());
    match type_id {
        BOOL_TYPE => bools.reserve(capacity),
        F32_TYPE | F64_TYPE => floats.reserve(capacity),
        _ => integers.reserve(capacity),
    }
    for _ in 0..n {
        match scalar(cursor, type_id, what)? {
            Scalar::Bool(value) => bools.push(value),
            Scalar::Float(value) => floats.push(value),
            Scalar::Integer(value) => integers.push(value),
            Scalar::Large(value) => {
                let problem = format!("has {value} at {what}, beyond 63 bits");
                return Err(GgufHeaderError::malformed(problem));
            }
        }
    }
    Ok(match type_id {
        BOOL_TYPE => MetadataValue::Bools(bools),
        F32_TYPE | F64_TYPE => MetadataValue::Floats(floats),
        _ => MetadataValue::Integers(integers),
    })
}

const BOOL_TYPE: u32 = 7;
const F32_TYPE: u32 = 6;
const F64_TYPE: u32 = 12;

enum Scalar {
    Bool(bool),
    Integer(i64),
    /// Beyond the range of `Integer`.
    Large(u64),
    Float(f64),
}

fn scalar_bytes(type_id: u32, what: &str) -> Result<u64, GgufHeaderError> {
    match type_id {
        0 | 1 | BOOL_TYPE => Ok(1),
        2 | 3 => Ok(2),
        4 | 5 | F32_TYPE => Ok(4),
        10 | 11 | F64_TYPE => Ok(8),
        _ => Err(GgufHeaderError::malformed(format!(
            "has a value of unknown type {type_id} at {what}"
        ))),
    }
}

fn scalar(
    cursor: &mut HeaderCursor<'_>,
    type_id: u32,
    what: &str,
) -> Result<Scalar, GgufHeaderError> {
    Ok(match type_id {
        0 => Scalar::Integer(i64::from(u8::from_le_bytes(cursor.array(what)?))),
        1 => Scalar::Integer(i64::from(i8::from_le_bytes(cursor.array(what)?))),
        2 => Scalar::Integer(i64::from(u16::from_le_bytes(cursor.array(what)?))),
        3 => Scalar::Integer(i64::from(i16::from_le_bytes(cursor.array(what)?))),
        4 => Scalar::Integer(i64::from(cursor.u32(what)?)),
        5 => Scalar::Integer(i64::from(i32::from_le_bytes(cursor.array(what)?))),
        F32_TYPE => Scalar::Float(f64::from(f32::from_le_bytes(cursor.array(what)?))),
        BOOL_TYPE => Scalar::Bool(cursor.array::<1>(what)? != [0]),
        10 => {
            let value = cursor.u64(what)?;
            i64::try_from(value).map_or(Scalar::Large(value), Scalar::Integer)
        }
        11 => Scalar::Integer(i64::from_le_bytes(cursor.array(what)?)),
        F64_TYPE => Scalar::Float(f64::from_le_bytes(cursor.array(what)?)),
        _ => return scalar_bytes(type_id, what).map(|_| unreachable!("type {type_id} has a size")),
    })
}

fn tensor(cursor: &mut HeaderCursor<'_>, tensor_idx: u64) -> Result<HeaderTensor, GgufHeaderError> {
    let name = cursor.text(&format!("the name of tensor {tensor_idx}"))?;
    let what = format!("tensor `{}`", quoted(&name));
    let rank = cursor.u32(&what)?;
    if rank > RANK_MAX {
        let problem = format!("has {what} of {rank} dimensions, more than {RANK_MAX}");
        return Err(GgufHeaderError::malformed(problem));
    }
    // GGUF lists the innermost dimension first.
    let mut shape = Vec::new();
    for _ in 0..rank {
        let dim = cursor.u64(&what)?;
        let dim = usize::try_from(dim).ok().filter(|dim| isize::try_from(*dim).is_ok());
        let too_large =
            || GgufHeaderError::malformed(format!("has {what} with a dimension beyond 63 bits"));
        shape.push(dim.ok_or_else(too_large)?);
    }
    shape.reverse();
    let type_id = cursor.u32(&what)?;
    let Some(dtype) = type_of(type_id) else {
        let problem = format!(
            "has {what} of type {type_id}, which ggml does not have (ik_llama.cpp has types of \
             its own): use another file of this model"
        );
        return Err(GgufHeaderError::malformed(problem));
    };
    let begin_bytes = cursor.u64(&what)?;
    let len_bytes = len_of(dtype, &shape, &what)?;
    Ok(HeaderTensor { name, dtype, shape, begin_bytes, len_bytes })
}

/// Returns the length of a tensor in bytes. Its rows must be whole blocks.
fn len_of(dtype: DType, shape: &[usize], what: &str) -> Result<u64, GgufHeaderError> {
    let (n_values, n_bytes) = block_of(dtype);
    let row = shape.last().map_or(1, |dim| *dim as u64);
    if !row.is_multiple_of(n_values) {
        let problem = format!(
            "has {what} with rows of {row} values, which are not whole blocks of {n_values} of \
             {dtype}"
        );
        return Err(GgufHeaderError::malformed(problem));
    }
    let outer = shape.iter().rev().skip(1);
    let n_rows = outer.clone().try_fold(1_u64, |n, &dim| n.checked_mul(dim as u64));
    let len_bytes = (row / n_values).checked_mul(n_bytes);
    let len_bytes = len_bytes.zip(n_rows).and_then(|(row, n_rows)| row.checked_mul(n_rows));
    len_bytes.ok_or_else(|| {
        GgufHeaderError::malformed(format!("has {what} of shape {shape:?}, larger than any file"))
    })
}

fn check_names(tensors: &[HeaderTensor]) -> Result<(), GgufHeaderError> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        Some(twice) => {
            Err(GgufHeaderError::malformed(format!("has tensor `{}` twice", quoted(&twice.name))))
        }
        None => Ok(()),
    }
}

/// Checks that tensors sorted by offset are aligned and do not overlap. Returns the end of the
/// last.
fn check_offsets(tensors: &[HeaderTensor], alignment: u64) -> Result<u64, GgufHeaderError> {
    let mut end_bytes = 0;
    for tensor in tensors {
        let (name, begin_bytes) = (quoted(&tensor.name), tensor.begin_bytes);
        if !begin_bytes.is_multiple_of(alignment) {
            return Err(GgufHeaderError::malformed(format!(
                "has tensor `{name}` at byte {begin_bytes} of its data, not at a multiple of \
                 {alignment}"
            )));
        }
        if begin_bytes < end_bytes {
            return Err(GgufHeaderError::malformed(format!(
                "has an overlap before tensor `{name}`: it begins at byte {begin_bytes} of the \
                 data, the tensors before it end at {end_bytes}"
            )));
        }
        let end = begin_bytes.checked_add(tensor.len_bytes);
        end_bytes = end.ok_or_else(|| {
            GgufHeaderError::malformed(format!(
                "has tensors up to `{name}` that are larger than any file"
            ))
        })?;
    }
    Ok(end_bytes)
}
