//! The small files beside the weights: copied, listed, and a config that says what the weights are.
//!
//! **Invariant:** a config that is not changed is copied byte for byte. What quantised files the
//! config described before is kept beside it, because tensors that are carried along may still be
//! so.

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
use crate::pack::plan::Plan;
use crate::spec::{QUANTISATION_KEY, QuantParams};

/// Where quantisation is described: tools write both, some twice.
const QUANTISATION_KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// What the source's quantisation is called in the config of a quantised pack.
const SOURCE_KEY: &str = "source_quantization_config";

/// The largest tokenizers have 30 MB. Anything larger is no document.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 128 << 20;

/// Ends of names of weights in other formats, and of what is not whole.
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

/// Names of the files of a folder that belong to a model besides weights and config.
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
        // Follows links: a cache has nothing else.
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

/// The same for a GGUF file, which has everything in itself: others lie next to it that belong to
/// other models. Only where its tokenizer is not known, one next to it counts.
fn documents_beside_gguf(dir: &Path) -> Vec<String> {
    let name = "tokenizer.json";
    if dir.join(name).is_file() { vec![name.to_owned()] } else { Vec::new() }
}

/// The small files of a source with their checksums; where it has no config it is a GGUF file.
///
/// # Errors
///
/// When one cannot be read.
pub(super) fn sums_of(dir: &Path, has_config: bool) -> Result<BTreeMap<String, u64>> {
    let names = if has_config { documents(dir)? } else { documents_beside_gguf(dir) };
    let sum = |name: String| {
        let bytes = read_file(&dir.join(&name), DOCUMENT_BYTES_MAX)?;
        Ok((name, DocumentSum::of_bytes(&bytes).sum))
    };
    names.into_iter().map(sum).collect()
}

/// The config of the pack.
///
/// # Errors
///
/// [`Error::Malformed`] if the source's is no object.
pub(super) fn config(
    source: &str,
    path: &Path,
    params: Option<QuantParams>,
    plan: &Plan,
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

/// What stands in the place of config, tokenizer and template in the pack of a GGUF file: its keys,
/// from the bytes before its data, and how matrices are quantised.
///
/// # Errors
///
/// [`Error::Malformed`] if these bytes are of no such file.
pub(super) fn gguf_metadata(
    source: &[u8],
    path: &Path,
    params: Option<QuantParams>,
    plan: &Plan,
) -> Result<Vec<u8>> {
    let mut pairs =
        pairs_of(source).map_err(|_| Error::malformed(path, "is no GGUF file any more"))?;
    if let Some(params) = params {
        let section = Value::Object(quantisation(params, plan)).to_string();
        pairs.add(QUANTISATION_KEY, NewValue::Text(&section));
    }
    Ok(new_gguf(&pairs, &[]).header)
}

fn quantisation(params: QuantParams, plan: &Plan) -> Map<String, Value> {
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

/// The list of all files, so that a folder that was copied in part says so.
pub(super) fn index(plan: &Plan) -> Vec<u8> {
    // The last tensor of each holds checksums.
    let tensors = plan.files.iter().flat_map(|file| {
        let tensors = &file.tensors[..file.tensors.len() - 1];
        tensors.iter().map(move |tensor| (file, tensor))
    });
    let total_bytes = tensors.clone().map(|(_, tensor)| tensor.len_bytes).sum();
    let names = tensors.map(|(file, tensor)| (tensor.name.as_str(), file.name.as_str()));
    let index = new_index(names, total_bytes);
    format!("{index:#}\n").into_bytes()
}
