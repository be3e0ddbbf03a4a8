//! Reads all tensors of a checkpoint, and writes them to another.

use std::collections::BTreeMap;
use std::path::Path;

use moeflux::provider::format::{Checkpoint, DType, NewTensor, new_header};
use moeflux_testing::temp_dir::TempDir;
use serde_json::{Map, Value};

/// A tensor's type, shape and bytes.
pub(super) type Tensor = (DType, Vec<usize>, Vec<u8>);

/// Returns all tensors of a checkpoint by their names.
pub(super) fn read(dir: &Path) -> BTreeMap<String, Tensor> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let files: Vec<_> =
        checkpoint.files.iter().map(|file| std::fs::read(&file.path).unwrap()).collect();
    let tensor = |(name, entry): (&String, &moeflux::provider::format::TensorEntry)| {
        let first = usize::try_from(entry.offset_bytes).unwrap();
        let len = usize::try_from(entry.len_bytes).unwrap();
        let bytes = files[entry.file_idx][first..][..len].to_vec();
        (name.clone(), (entry.dtype, entry.shape.clone(), bytes))
    };
    checkpoint.tensors.iter().map(tensor).collect()
}

/// Writes a checkpoint.
pub(super) fn written(tensors: &BTreeMap<String, Tensor>, config: &Value) -> TempDir {
    let dir = TempDir::new();
    let mut new = Vec::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let len_bytes = bytes.len() as u64;
        new.push(NewTensor { name, dtype: *dtype, shape, len_bytes });
    }
    let mut file = new_header(Map::new(), &new, 1);
    tensors.values().for_each(|(_, _, bytes)| file.extend(bytes));
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}
