//! Distributes tensors over files: the shard of each, its offset there, and the headers.
//!
//! **Invariant:** tensors keep their order, none is split, and a shard exceeds the requested size
//! only if a single tensor does. Handles lengths, never values.

use std::ops::Range;

use moeflux::provider::format::{NewTensor, new_header, new_index};
use moeflux::provider::weights::SyntheticTensor;
use moeflux::{Error, Result};
use serde_json::{Map, Value};

/// Names have five digits.
const N_SHARDS_MAX: usize = 99_999;

/// Headers are padded so that the data begins at a multiple of this, the largest unit that a device
/// loads at once.
const HEADER_ALIGN: usize = 64;

/// One file of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    /// `model-00001-of-00002.safetensors`.
    pub(super) name: String,
    /// The range of its tensors.
    pub(super) tensors: Range<usize>,
    /// All bytes before the first tensor.
    pub(super) header: Vec<u8>,
    /// The offset of each tensor in the file.
    pub(super) places: Vec<u64>,
    /// The length of the file.
    pub(super) len_bytes: u64,
}

/// Distributes tensors over files of at most `shard_bytes_max` of data.
pub(super) fn plan(tensors: &[SyntheticTensor], shard_bytes_max: u64) -> Result<Vec<Shard>> {
    let ranges = ranges(tensors, shard_bytes_max)?;
    let n_shards = ranges.len();
    let shards = ranges.into_iter().enumerate().map(|(shard_idx, range)| {
        let header = header(&tensors[range.clone()]);
        let mut len_bytes = header.len() as u64;
        let places = tensors[range.clone()].iter().map(|tensor| {
            len_bytes += tensor.len_bytes;
            len_bytes - tensor.len_bytes
        });
        let places = places.collect();
        let name = file_name(shard_idx, n_shards, "safetensors");
        Shard { name, tensors: range, header, places, len_bytes }
    });
    Ok(shards.collect())
}

/// Returns the range of tensors in each file.
///
/// # Errors
///
/// [`Error::Input`] if more files are needed than there are names.
pub(super) fn ranges(
    tensors: &[SyntheticTensor],
    shard_bytes_max: u64,
) -> Result<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
    let (mut first, mut n_bytes) = (0, 0);
    for (tensor_idx, tensor) in tensors.iter().enumerate() {
        if tensor_idx > first && n_bytes + tensor.len_bytes > shard_bytes_max {
            ranges.push(first..tensor_idx);
            (first, n_bytes) = (tensor_idx, 0);
        }
        n_bytes += tensor.len_bytes;
    }
    ranges.push(first..tensors.len());
    let n_shards = ranges.len();
    if n_shards <= N_SHARDS_MAX {
        return Ok(ranges);
    }
    Err(Error::Input(format!(
        "--shard-size {shard_bytes_max} makes {n_shards} files; write a size that makes at most \
         {N_SHARDS_MAX}"
    )))
}

/// Returns the name of one of several files.
pub(super) fn file_name(shard_idx: usize, n_shards: usize, end: &str) -> String {
    if n_shards == 1 {
        return format!("model.{end}");
    }
    format!("model-{:05}-of-{n_shards:05}.{end}", shard_idx + 1)
}

fn header(tensors: &[SyntheticTensor]) -> Vec<u8> {
    let tensors = tensors.iter().map(|tensor| NewTensor {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        len_bytes: tensor.len_bytes,
    });
    let tensors: Vec<NewTensor<'_>> = tensors.collect();
    let metadata = Map::from_iter([("format".to_owned(), Value::String("mlx".to_owned()))]);
    new_header(metadata, &tensors, HEADER_ALIGN)
}

/// Returns the index of several files; a single file needs none.
pub(super) fn index(tensors: &[SyntheticTensor], shards: &[Shard]) -> Option<Value> {
    if shards.len() == 1 {
        return None;
    }
    let names = shards.iter().flat_map(|shard| {
        let tensors = &tensors[shard.tensors.clone()];
        tensors.iter().map(|tensor| (tensor.name.as_str(), shard.name.as_str()))
    });
    let total_bytes: u64 = tensors.iter().map(|tensor| tensor.len_bytes).sum();
    Some(new_index(names, total_bytes))
}

#[cfg(test)]
mod tests {
    use moeflux::provider::format::{DType, parse_header};
    use moeflux::provider::weights::SyntheticRole;

    use super::*;

    fn tensors(lengths: &[usize]) -> Vec<SyntheticTensor> {
        let tensor = |(idx, &len): (usize, &usize)| SyntheticTensor {
            name: format!("t{idx}"),
            canonical: format!("t{idx}"),
            dtype: DType::Bf16,
            shape: vec![len],
            role: SyntheticRole::Bias,
            integers: Vec::new(),
            len_bytes: 2 * len as u64,
        };
        lengths.iter().enumerate().map(tensor).collect()
    }

    #[test]
    fn cuts_between_tensors() {
        let check = |lengths: &[usize], shard_bytes_max, expected: &str| {
            let found = ranges(&tensors(lengths), shard_bytes_max).unwrap();
            assert_eq!(format!("{found:?}"), expected, "{lengths:?}");
        };
        check(&[5, 5, 5], 100, "[0..3]");
        check(&[5, 5, 5], 30, "[0..3]");
        check(&[5, 5, 5], 29, "[0..2, 2..3]");
        check(&[5, 50, 5], 20, "[0..1, 1..2, 2..3]");
        check(&[50, 5, 5], 20, "[0..1, 1..3]");
        check(&[5, 5], 0, "[0..1, 1..2]");
    }

    #[test]
    fn the_reader_accepts_the_headers() {
        let tensors = tensors(&[3, 1, 7]);
        let shards = plan(&tensors, 9).unwrap();
        let names: Vec<&str> = shards.iter().map(|shard| shard.name.as_str()).collect();
        assert_eq!(names, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
        for shard in &shards {
            let (length, text) = shard.header.split_at(8);
            assert_eq!(u64::from_le_bytes(length.try_into().unwrap()), text.len() as u64);
            assert!(text.len().is_multiple_of(8));
            let data_bytes = shard.len_bytes - shard.header.len() as u64;
            let read = parse_header(text, data_bytes).unwrap();
            let expected: Vec<&str> =
                tensors[shard.tensors.clone()].iter().map(|tensor| tensor.name.as_str()).collect();
            let found: Vec<&str> = read.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            assert_eq!(found, expected);
        }
        let index = index(&tensors, &shards).unwrap();
        assert_eq!(index["weight_map"]["t2"], names[1]);
        assert_eq!(index["metadata"]["total_size"], 22);
    }

    #[test]
    fn one_file_has_the_plain_name_and_no_index() {
        let tensors = tensors(&[3]);
        let shards = plan(&tensors, 1).unwrap();
        assert_eq!(shards[0].name, "model.safetensors");
        assert!(index(&tensors, &shards).is_none());
    }

    #[test]
    fn too_many_files_are_refused() {
        let error = plan(&tensors(&vec![1; 100_000]), 1).unwrap_err().to_string();
        assert!(error.contains("100000 files") && error.contains("99999"), "{error}");
    }
}
