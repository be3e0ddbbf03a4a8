//! The header of a safetensors file: names, types, shapes and byte ranges.
//!
//! **Invariant:** the tensors returned cover the data of the file exactly, in order, without holes
//! or overlaps, and the length of each matches its shape and type. The parser is a pure function of
//! bytes and lengths, and is fuzzed. It replaces the `safetensors` crate, which needs the whole
//! file in memory or mapped and whose errors do not name the tensor. Tensor data is never read
//! here.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::format::dtype::DType;
use crate::format::{FETCH_AGAIN, ParseError, quoted};

/// Length of the prefix, which holds the header's length.
pub(in crate::format) const PREFIX_BYTES: u64 = 8;

const METADATA_KEY: &str = "__metadata__";

/// Upper bound on dimensions. No tensor has more; it bounds a hostile shape.
const RANK_MAX: usize = 8;

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its name in the file.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Offset of its first byte from the end of the header.
    pub begin_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// The contents of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SafetensorsHeader {
    /// Tensors in byte order.
    pub tensors: Vec<HeaderTensor>,
    /// Entries of `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// Parses a header, given without its length prefix and followed by `data_bytes` in its file.
///
/// # Errors
///
/// [`ParseError`] says what is wrong and names the tensor.
pub fn parse_header(header: &[u8], data_bytes: u64) -> Result<SafetensorsHeader, ParseError> {
    if header.first() != Some(&b'{') {
        let problem = "its header does not begin with `{`: this is not a safetensors file";
        return Err(ParseError(problem.to_owned()));
    }
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = json.deserialize_map(HeaderVisitor).and_then(|parsed| json.end().map(|()| parsed));
    let mut parsed =
        parsed.map_err(|error| ParseError(format!("its header is malformed: {error}")))?;
    check_names(&parsed.tensors)?;
    parsed.tensors.sort_by_key(|tensor| (tensor.begin_bytes, tensor.len_bytes));
    check_cover(&parsed.tensors, PREFIX_BYTES + header.len() as u64, data_bytes)?;
    Ok(parsed)
}

fn check_names(tensors: &[HeaderTensor]) -> Result<(), ParseError> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        Some(twice) => Err(ParseError(format!("its header lists `{}` twice", quoted(&twice.name)))),
        None => Ok(()),
    }
}

/// Checks that tensors sorted by offset are contiguous up to the end of the file.
fn check_cover(tensors: &[HeaderTensor], data_at: u64, data_bytes: u64) -> Result<(), ParseError> {
    let mut covered_bytes = 0;
    for tensor in tensors {
        let begin_bytes = tensor.begin_bytes;
        if begin_bytes != covered_bytes {
            let name = quoted(&tensor.name);
            let what = if begin_bytes < covered_bytes { "an overlap" } else { "a hole" };
            let problem = format!(
                "{what} before tensor `{name}`: it begins at byte {begin_bytes} of the data, \
                 the tensors before it end at {covered_bytes}"
            );
            return Err(ParseError(problem));
        }
        // Cannot overflow: a tensor's end was read as a u64.
        covered_bytes = begin_bytes + tensor.len_bytes;
    }
    let ends_at = data_at.saturating_add(data_bytes);
    let wanted_end = data_at.saturating_add(covered_bytes);
    match covered_bytes.cmp(&data_bytes) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(ParseError(format!(
            "ends at byte {ends_at}, but its header requires {wanted_end}: {FETCH_AGAIN}"
        ))),
        Ordering::Less => Err(ParseError(format!(
            "ends at byte {ends_at}, its last tensor at {wanted_end}: the bytes between them \
             belong to no tensor, so the file is damaged"
        ))),
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = SafetensorsHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SafetensorsHeader, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name != METADATA_KEY {
                tensors.push(map.next_value_seed(TensorSeed { name })?);
            } else if metadata.replace(map.next_value_seed(MetadataSeed)?).is_some() {
                return Err(A::Error::custom("`__metadata__` occurs twice"));
            }
        }
        Ok(SafetensorsHeader { tensors, metadata: metadata.unwrap_or_default() })
    }
}

/// Parses `__metadata__`.
struct MetadataSeed;

impl<'de> DeserializeSeed<'de> for MetadataSeed {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`__metadata__` as an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if metadata.contains_key(&key) {
                let problem = format!("`__metadata__` has `{}` twice", quoted(&key));
                return Err(A::Error::custom(problem));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }
}

/// Parses the entry of one tensor.
struct TensorSeed {
    name: String,
}

impl TensorSeed {
    fn wrong<E: serde::de::Error>(&self, problem: impl fmt::Display) -> E {
        E::custom(format!("tensor `{}`: {problem}", quoted(&self.name)))
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum TensorField {
    Dtype,
    Shape,
    DataOffsets,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for TensorSeed {
    type Value = HeaderTensor;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TensorSeed {
    type Value = HeaderTensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor `{}` as an object", quoted(&self.name))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderTensor, A::Error> {
        let (mut dtype, mut shape, mut range) = (None, None, None);
        while let Some(field) = map.next_key::<TensorField>()? {
            let outcome = match field {
                TensorField::Dtype => map.next_value().map(|value| dtype.replace(value).is_some()),
                TensorField::Shape => map.next_value().map(|value| shape.replace(value).is_some()),
                TensorField::DataOffsets => {
                    map.next_value().map(|value| range.replace(value).is_some())
                }
                TensorField::Other => map.next_value::<IgnoredAny>().map(|_| false),
            };
            if outcome.map_err(|error| self.wrong(error))? {
                return Err(self.wrong("a key occurs twice"));
            }
        }
        let dtype = dtype.ok_or_else(|| self.wrong("`dtype` is missing"))?;
        let BoundedShape(shape) = shape.ok_or_else(|| self.wrong("`shape` is missing"))?;
        let (begin, end) = range.ok_or_else(|| self.wrong("`data_offsets` is missing"))?;
        let len_bytes =
            checked_len(dtype, &shape, begin, end).map_err(|problem| self.wrong(problem))?;
        Ok(HeaderTensor { name: self.name, dtype, shape, begin_bytes: begin, len_bytes })
    }
}

/// Returns the length of a tensor in bytes if its range matches its shape and type.
fn checked_len(dtype: DType, shape: &[usize], begin: u64, end: u64) -> Result<u64, ParseError> {
    let n_bits = shape
        .iter()
        .try_fold(1_u64, |n_values, &dim| n_values.checked_mul(u64::try_from(dim).ok()?))
        .and_then(|n_values| n_values.checked_mul(dtype.bits()?));
    let Some(n_bits) = n_bits else {
        return Err(ParseError(format!("shape {shape:?} of {dtype} has too many values")));
    };
    let Some(len_bytes) = end.checked_sub(begin) else {
        return Err(ParseError(format!("data_offsets [{begin}, {end}] end before they begin")));
    };
    if !n_bits.is_multiple_of(8) {
        let problem = format!("shape {shape:?} of {dtype} is {n_bits} bits, not whole bytes");
        return Err(ParseError(problem));
    }
    if n_bits / 8 != len_bytes {
        return Err(ParseError(format!(
            "shape {shape:?} of {dtype} has {} bytes, data_offsets [{begin}, {end}] hold \
             {len_bytes}",
            n_bits / 8
        )));
    }
    Ok(len_bytes)
}

/// The dimensions of a tensor, at most [`RANK_MAX`].
struct BoundedShape(Vec<usize>);

impl<'de> Deserialize<'de> for BoundedShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = BoundedShape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a shape of at most {RANK_MAX} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<BoundedShape, A::Error> {
        let mut shape = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if shape.len() == RANK_MAX {
                return Err(A::Error::custom(format!("shape has more than {RANK_MAX} dimensions")));
            }
            shape.push(dim);
        }
        Ok(BoundedShape(shape))
    }
}
