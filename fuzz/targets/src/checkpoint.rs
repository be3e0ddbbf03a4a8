//! A config and the headers of a directory's files, packed or not, up to a model: an accepted one
//! has every matrix, vector, expert and checksum inside its file.
//!
//! Input: JSON, `{"config": {..}, "files": [{"name": .., "len_bytes": .., "header": {..}}]}`.

use std::path::Path;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::format::{Checkpoint, RawConfig};
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::weights::{FileExtent, VectorSource};
use serde_json::Value;

use crate::support::check_refusal;

/// Returns names, lengths and headers.
fn files_of(value: &Value) -> Option<Vec<(String, u64, String)>> {
    let file = |file: &Value| {
        let name = file.get("name")?.as_str()?.to_owned();
        Some((name, file.get("len_bytes")?.as_u64()?, file.get("header")?.to_string()))
    };
    value.get("files")?.as_array()?.iter().map(file).collect()
}

pub(crate) fn check(input: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
    let Some(files) = files_of(&value) else { return };
    let config = value.get("config").unwrap_or(&Value::Null).to_string();
    let headers = files.iter().map(|(name, len, text)| (name.as_str(), *len, text.as_bytes()));
    let checkpoint = match Checkpoint::of_headers(Path::new("m"), headers) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return check_refusal(&error),
    };
    let raw = match RawConfig::parse(Path::new("config.json"), config.as_bytes()) {
        Ok(raw) => raw,
        Err(error) => return check_refusal(&error),
    };
    let blueprint = match Blueprint::of_parts(&raw, &checkpoint) {
        Ok(blueprint) => blueprint,
        Err(error) => return check_refusal(&error),
    };
    check_blueprint(&blueprint, &checkpoint);
}

/// Checks that all bound data lies inside its file.
pub(crate) fn check_blueprint(blueprint: &Blueprint, checkpoint: &Checkpoint) {
    let check_extent = |extent: &FileExtent| {
        let file = &checkpoint.files[extent.file_idx];
        let end = extent.offset_bytes.checked_add(extent.len_bytes).expect("a place in a file");
        assert!(file.data_at <= extent.offset_bytes && end <= file.len_bytes, "{extent:?}");
    };
    for matrix in &blueprint.manifest.matrices {
        check_extent(&matrix.codes);
        matrix.scales.iter().chain(&matrix.biases).for_each(check_extent);
        assert!(matrix.rows.iter().all(|rows| rows.end <= matrix.stored_rows));
    }
    for vector in &blueprint.manifest.vectors {
        if let VectorSource::Stored(stored) = vector {
            check_extent(&stored.extent);
        }
    }
    for bank in &blueprint.manifest.banks {
        let record_bytes = bank.layout.record_bytes();
        let mut record_at = 0;
        for part in &bank.parts {
            assert!(record_at <= part.record_at, "parts do not overlap: {bank:?}");
            record_at = part.record_at + part.len_bytes;
            assert!(record_at <= record_bytes, "{bank:?}");
        }
        for expert in [0, bank.n_experts - 1].map(ExpertIdx) {
            bank.parts.iter().for_each(|part| check_extent(&part.extent(expert)));
            if let Some(records) = &bank.records {
                check_extent(&records.extent(expert));
            }
        }
        let _bytes = (bank.memory_bytes(), bank.stored_bytes());
    }
    let _number = blueprint.header_fingerprint(checkpoint);
    let _bytes = blueprint.routed_bytes_per_token();
}
