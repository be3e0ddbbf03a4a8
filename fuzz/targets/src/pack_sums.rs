//! `moeflux-pack.json`: an accepted file survives writing and reading again.
//!
//! Input: the unmodified file; tried again with its own checksum corrected.

use std::collections::BTreeMap;

use moeflux::provider::format::{DocumentSum, PackSums};
use serde_json::Value;

use crate::support::check_refusal;

pub(crate) fn check(input: &[u8]) {
    check_file(input);
    let Ok(mut value) = serde_json::from_slice::<Value>(input) else { return };
    let Some(sums) = sums_of(&value) else { return };
    let written: Value = serde_json::from_slice(&sums.to_bytes()).expect("JSON");
    if let (Some(own), Some(map)) = (written.get("own"), value.as_object_mut()) {
        map.insert("own".to_owned(), own.clone());
        check_file(value.to_string().as_bytes());
    }
}

fn check_file(bytes: &[u8]) {
    let sums = match PackSums::parse(bytes) {
        Ok(sums) => sums,
        Err(problem) => return check_refusal(&problem),
    };
    assert_eq!(PackSums::parse(&sums.to_bytes()).expect("what it wrote itself"), sums);
}

/// Returns the contents of the file, if they are complete.
fn sums_of(value: &Value) -> Option<PackSums> {
    let sum = |value: &Value| u64::from_str_radix(value.as_str()?, 16).ok();
    let weight = |(name, value): (&String, &Value)| Some((name.clone(), sum(value)?));
    let document = |(name, value): (&String, &Value)| {
        let len_bytes = value.get("n_bytes")?.as_u64()?;
        Some((name.clone(), DocumentSum { len_bytes, sum: sum(value.get("sum")?)? }))
    };
    let (weights, documents) = (value.get("weights")?, value.get("documents")?);
    let weights: Option<BTreeMap<_, _>> = weights.as_object()?.iter().map(weight).collect();
    let documents: Option<BTreeMap<_, _>> = documents.as_object()?.iter().map(document).collect();
    Some(PackSums { pack: sum(value.get("pack")?)?, weights: weights?, documents: documents? })
}
