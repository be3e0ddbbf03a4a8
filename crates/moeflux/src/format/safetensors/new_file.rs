//! Headers of safetensors files to be written, and the index of a set of them.
//!
//! **Invariant:** tensors are laid out contiguously in the given order, so that
//! [`crate::format::parse_header`] accepts the result.

use serde_json::{Map, Value, json};

use crate::format::DType;

/// A tensor of a file to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Type of its values.
    pub dtype: DType,
    /// Its shape.
    pub shape: &'a [usize],
    /// Length in bytes. It must match type and shape.
    pub len_bytes: u64,
}

/// Returns the header of a file with its length prefix, padded so that the data begins at a
/// multiple of `align`.
#[must_use]
pub fn new_header(
    metadata: Map<String, Value>,
    tensors: &[NewTensor<'_>],
    align: usize,
) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), Value::Object(metadata));
    let mut begin_bytes = 0;
    for &NewTensor { name, dtype, shape, len_bytes } in tensors {
        let end_bytes = begin_bytes + len_bytes;
        let data_offsets = [begin_bytes, end_bytes];
        let entry = json!({"dtype": dtype.name(), "shape": shape, "data_offsets": data_offsets});
        entries.insert(name.to_owned(), entry);
        begin_bytes = end_bytes;
    }
    let text = Value::Object(entries).to_string();
    let data_at = (size_of::<u64>() + text.len()).next_multiple_of(align);
    let header_bytes = (data_at - size_of::<u64>()) as u64;
    let mut header = header_bytes.to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header.resize(data_at, b' ');
    header
}

/// Returns the index of a set of files, given the file of each tensor and the total size of all
/// tensors.
pub fn new_index<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a str)>,
    total_bytes: u64,
) -> Value {
    let entry = |(tensor, file): (&str, &str)| (tensor.to_owned(), Value::String(file.to_owned()));
    let weight_map: Map<String, Value> = tensors.into_iter().map(entry).collect();
    json!({"metadata": {"total_size": total_bytes}, "weight_map": weight_map})
}
