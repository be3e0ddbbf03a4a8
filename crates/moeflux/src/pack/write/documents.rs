//! The small files beside the weights: copied documents, the index, and a config that describes the
//! packed weights.
//!
//! **Invariant:** an unmodified config is copied byte for byte. A quantised pack keeps the source's
//! description of quantisation under another key, because extras may still be quantised that way.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use moeflux_io::ReadFile;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::format::{
    DocumentSum, NewValue, PACK_SUMS_NAME, new_gguf, new_index, pairs_of, parse_json, read_file,
    write_json,
};
use crate::pack::plan::PackPlan;
use crate::spec::{QUANTISATION_KEY, QuantParams};

/// Keys that describe quantisation: tools write either, and some write both.
const QUANTISATION_KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Key of the source's quantisation in the config of a quantised pack.
const SOURCE_KEY: &str = "source_quantization_config";

/// Upper bound on a document. The largest tokenizers have 30 MB.
pub(in crate::pack) const DOCUMENT_BYTES_MAX: u64 = 128 << 20;

/// Suffixes of weights in other formats, and of incomplete files.
const NO_DOCUMENTS: [&str; 16] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".gguf",
    ".ggml",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".onnx",
    ".npz",
    ".tmp",
    ".incomplete",
    ".partial",
];

/// Returns the names of a folder's files that belong to a model, except weights and config.
///
/// # Errors
///
/// [`Error::Io`].
fn documents(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", dir)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", dir))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_other = name.starts_with('.')
            || name == "config.json"
            || name == PACK_SUMS_NAME
            || NO_DOCUMENTS.iter().any(|end| name.ends_with(end));
        // Follows links: all files of a cache are links.
        if is_other || entry.path().is_dir() {
            continue;
        }
        let file = ReadFile::open(&entry.path()).map_err(Error::io("open", &entry.path()))?;
        if file.len_bytes() <= DOCUMENT_BYTES_MAX {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the documents for a GGUF file. It is self-contained, and files next to it may belong to
/// other models. Only `tokenizer.json` is included, for models whose tokenizer is not known.
fn documents_beside_gguf(dir: &Path) -> Vec<String> {
    let name = "tokenizer.json";
    if dir.join(name).is_file() { vec![name.to_owned()] } else { Vec::new() }
}

/// Computes the checksums of a source's small files. A source without config is a GGUF file.
///
/// # Errors
///
/// If a file cannot be read.
pub(in crate::pack) fn sums_of(dir: &Path, has_config: bool) -> Result<BTreeMap<String, u64>> {
    let names = if has_config { documents(dir)? } else { documents_beside_gguf(dir) };
    let sum = |name: String| {
        let bytes = read_file(&dir.join(&name), DOCUMENT_BYTES_MAX)?;
        Ok((name, DocumentSum::of_bytes(&bytes).sum))
    };
    names.into_iter().map(sum).collect()
}

/// Returns the config of the pack.
///
/// # Errors
///
/// [`Error::Malformed`] if the source's config is not a JSON object.
pub(in crate::pack) fn config(
    source: &str,
    path: &Path,
    params: Option<QuantParams>,
    plan: &PackPlan,
) -> Result<Vec<u8>> {
    let Some(params) = params else { return Ok(source.as_bytes().to_vec()) };
    let value = parse_json(source.as_bytes())
        .map_err(|error| Error::malformed(path, format!("is not JSON: {error}")))?;
    let Value::Object(mut root) = value else {
        return Err(Error::malformed(path, "is not a JSON object"));
    };
    let mut before = take_quantisation(&mut root);
    if let Some(Value::Object(text)) = root.get_mut("text_config") {
        before = before.or(take_quantisation(text));
    }
    if let Some(before) = before {
        root.insert(SOURCE_KEY.to_owned(), before);
    }
    let section = quantisation(params, plan);
    for key in QUANTISATION_KEYS {
        root.insert(key.to_owned(), Value::Object(section.clone()));
    }
    Ok(write_json(&Value::Object(root)).into_bytes())
}

/// Returns the metadata that replaces config, tokenizer and template in the pack of a GGUF file:
/// the keys from the source's header, and the quantisation of matrices.
///
/// # Errors
///
/// [`Error::Malformed`] if `source` is not the header of a GGUF file.
pub(in crate::pack) fn gguf_metadata(
    source: &[u8],
    path: &Path,
    params: Option<QuantParams>,
    plan: &PackPlan,
) -> Result<Vec<u8>> {
    let mut pairs =
        pairs_of(source).map_err(|_| Error::malformed(path, "is no longer a GGUF file"))?;
    if let Some(params) = params {
        let section = Value::Object(quantisation(params, plan)).to_string();
        pairs.add(QUANTISATION_KEY, NewValue::Text(&section));
    }
    Ok(new_gguf(&pairs, &[]).header)
}

fn quantisation(params: QuantParams, plan: &PackPlan) -> Map<String, Value> {
    let entry = |params: QuantParams| json!({"group_size": params.group, "bits": params.bits});
    let mut section = Map::new();
    section.insert("group_size".to_owned(), json!(params.group));
    section.insert("bits".to_owned(), json!(params.bits));
    section.insert("mode".to_owned(), json!("affine"));
    for (base, params) in &plan.overrides {
        section.insert(base.clone(), entry(*params));
    }
    section
}

fn take_quantisation(map: &mut Map<String, Value>) -> Option<Value> {
    let [first, second] = QUANTISATION_KEYS.map(|key| map.shift_remove(key));
    second.or(first).filter(|value| !value.is_null())
}

/// Returns the index of all files, which reveals an incomplete copy of the folder.
pub(in crate::pack) fn index(plan: &PackPlan) -> Vec<u8> {
    // The last tensor of each file holds checksums.
    let tensors = plan.files.iter().flat_map(|file| {
        let tensors = &file.tensors[..file.tensors.len() - 1];
        tensors.iter().map(move |tensor| (file, tensor))
    });
    let total_bytes = tensors.clone().map(|(_, tensor)| tensor.len_bytes).sum();
    let names = tensors.map(|(file, tensor)| (tensor.name.as_str(), file.name.as_str()));
    let index = new_index(names, total_bytes);
    format!("{index:#}\n").into_bytes()
}
