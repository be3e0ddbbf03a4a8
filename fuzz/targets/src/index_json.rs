//! Indices of shards: all files of an accepted index are in its directory.

use std::path::{Component, Path};

use moeflux::provider::format::parse_index;

pub(crate) fn check(input: &[u8]) {
    let Ok(index) = parse_index(input) else { return };
    assert!(index.files.is_sorted());
    assert!(index.tensors.values().all(|&file_idx| file_idx < index.files.len()));
    for file in &index.files {
        let components: Vec<_> = Path::new(file).components().collect();
        assert!(matches!(components[..], [Component::Normal(_)]), "{file:?}");
    }
}
