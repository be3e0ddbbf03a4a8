//! `moeflux-sums.json`: an accepted file survives writing and reading again.
//!
//! Input: the unmodified file; tried again with its own checksum corrected.

use std::collections::BTreeMap;

use moeflux::provider::format::{FileSums, SumsDocument};
use serde_json::Value;

use crate::support::check_refusal;

pub(crate) fn check(input: &[u8]) {
    check_file(input);
    let Ok(mut value) = serde_json::from_slice::<Value>(input) else { return };
    let own = document_of(&value).and_then(|it| it.to_json().get("own").cloned());
    if let (Some(own), Some(map)) = (own, value.as_object_mut()) {
        map.insert("own".to_owned(), own);
        check_file(value.to_string().as_bytes());
    }
}

fn check_file(bytes: &[u8]) {
    let document = match SumsDocument::parse(bytes) {
        Ok(document) => document,
        Err(problem) => return check_refusal(&problem),
    };
    let again = SumsDocument::parse(document.to_json().to_string().as_bytes());
    assert_eq!(again.expect("what it wrote itself"), document);
}

/// Returns the contents of the file, if they are complete.
fn document_of(value: &Value) -> Option<SumsDocument> {
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let file = |file: &Value| {
        let tensor = |(name, digits): (&String, &Value)| {
            let digits = digits.as_str()?.as_bytes().chunks(16);
            let sums = digits.map(|it| number(std::str::from_utf8(it).ok()?));
            Some((name.clone(), sums.collect::<Option<_>>()?))
        };
        let sums = FileSums {
            len_bytes: file.get("n_bytes")?.as_u64()?,
            header: number(file.get("header")?.as_str()?)?,
            tensors: file.get("tensors")?.as_object()?.iter().map(tensor).collect::<Option<_>>()?,
        };
        Some((file.get("name")?.as_str()?.to_owned(), sums))
    };
    let files =
        value.get("files")?.as_array()?.iter().map(file).collect::<Option<BTreeMap<_, _>>>()?;
    Some(SumsDocument { files })
}
