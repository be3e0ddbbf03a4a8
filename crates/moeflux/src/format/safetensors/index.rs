//! `model.safetensors.index.json`: maps each tensor to its shard.
//!
//! **Invariant:** every file is a plain name, so that an index cannot point outside its folder, and
//! no tensor is listed twice. Whether the files exist is not checked here.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::format::{ParseError, quoted};

/// The contents of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardIndex {
    /// Names of the files, sorted.
    pub files: Vec<String>,
    /// Index into `files` of each tensor, by its name in the file.
    pub tensors: BTreeMap<String, usize>,
}

/// Parses the bytes of an index.
///
/// # Errors
///
/// [`ParseError`] names the entry that is malformed, duplicate, or outside the folder.
pub fn parse_index(bytes: &[u8]) -> Result<ShardIndex, ParseError> {
    let document: IndexDocument = serde_json::from_slice(bytes)
        .map_err(|error| ParseError(format!("is not an index of shards: {error}")))?;
    let WeightMap { mut files, mut tensors } = document.weight_map;
    if tensors.is_empty() {
        return Err(ParseError("its weight_map is empty".to_owned()));
    }
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by(|&a, &b| files.get(a).cmp(&files.get(b)));
    let mut new_idx = vec![0; files.len()];
    for (new, &old) in order.iter().enumerate() {
        if let Some(slot) = new_idx.get_mut(old) {
            *slot = new;
        }
    }
    for file_idx in tensors.values_mut() {
        *file_idx = new_idx.get(*file_idx).copied().unwrap_or(*file_idx);
    }
    files.sort();
    Ok(ShardIndex { files, tensors })
}

#[derive(Deserialize)]
struct IndexDocument {
    weight_map: WeightMap,
}

/// The entries of `weight_map`, with files in order of first appearance.
struct WeightMap {
    files: Vec<String>,
    tensors: BTreeMap<String, usize>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("weight_map as an object from tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut idx_of_file = HashMap::new();
        let mut tensors = BTreeMap::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if tensors.contains_key(&tensor) {
                let problem = format!("weight_map has `{}` twice", quoted(&tensor));
                return Err(A::Error::custom(problem));
            }
            if !is_plain_name(&file) {
                let problem = format!(
                    "tensor `{}` is said to be in `{}`, which is not the name of a file of this \
                     folder",
                    quoted(&tensor),
                    quoted(&file)
                );
                return Err(A::Error::custom(problem));
            }
            let next_idx = idx_of_file.len();
            tensors.insert(tensor, *idx_of_file.entry(file).or_insert(next_idx));
        }
        let mut by_idx: Vec<(usize, String)> =
            idx_of_file.into_iter().map(|(file, file_idx)| (file_idx, file)).collect();
        by_idx.sort();
        Ok(WeightMap { files: by_idx.into_iter().map(|(_, file)| file).collect(), tensors })
    }
}

/// Returns whether joining `name` to a folder stays in that folder, on every system.
fn is_plain_name(name: &str) -> bool {
    let has_separator = name.contains(['/', '\\', ':', '\0']);
    !has_separator && !matches!(name, "" | "." | "..")
}
