//! Ranges that have checksums, and the sums document.

use std::collections::BTreeMap;

use super::units::units_of;
use super::*;
use crate::format::{DType, TensorEntry};

fn entry(shape: &[usize], len_bytes: u64) -> TensorEntry {
    TensorEntry {
        name: "t".to_owned(),
        dtype: DType::U8,
        shape: shape.to_vec(),
        file_idx: 3,
        offset_bytes: 1001,
        len_bytes,
    }
}

#[test]
fn units_cover_a_tensor_once() {
    let whole = 150 << 20;
    for (shape, len_bytes, n_units, is_sliced) in [
        (&[5][..], 5, 1, false),
        (&[0], 0, 0, false),
        (&[150, 1 << 20], whole, 3, false),
        (&[10, 15, 1 << 20], whole, 10, true),
        (&[1, 150, 1 << 20], whole, 3, false),
        (&[1 << 20, 150, 1], whole, 1 << 20, true),
        (&[100, 4, 1], 400, 1, false),
        (&[100, 4, 16], 6400, 100, true),
    ] {
        let units: Vec<TensorUnit> = units_of(&entry(shape, len_bytes)).collect();
        assert_eq!(units.len(), n_units, "{shape:?}");
        let mut next = 1001;
        for unit in &units {
            assert_eq!((unit.first_bytes, unit.file_idx), (next, 3));
            assert_eq!(unit.slice.is_some(), is_sliced);
            next += unit.len_bytes;
        }
        assert_eq!(next, 1001 + len_bytes, "{shape:?}");
    }
}

#[test]
fn runs_are_found_by_their_overlap_with_a_range() {
    let unit = |first_bytes, len_bytes| SumUnit { first_bytes, len_bytes, sum: 0 };
    let sums =
        CheckpointSums { by_file: vec![Vec::new(), vec![unit(10, 5), unit(15, 1)]], advice: "" };
    for (range, n_found) in [(0..10, 0), (0..11, 1), (14..15, 1), (14..16, 2), (16..90, 0)] {
        assert_eq!(sums.overlapping(1, &range).len(), n_found, "{range:?}");
        assert!(sums.overlapping(0, &range).is_empty() && sums.overlapping(7, &range).is_empty());
    }
}

fn document() -> SumsDocument {
    let tensors = BTreeMap::from([
        ("a \"quoted\"".to_owned(), vec![0, u64::MAX]),
        ("empty".to_owned(), Vec::new()),
    ]);
    let file = FileSums { len_bytes: 77, header: 5, tensors };
    SumsDocument { files: BTreeMap::from([("model.safetensors".to_owned(), file)]) }
}

#[test]
fn no_byte_of_the_document_can_change_unseen() {
    let text = document().to_json().to_string();
    assert_eq!(SumsDocument::parse(text.as_bytes()).unwrap(), document());
    for (from, to) in [
        ("ffffffffffffffff", "fffffffffffffffe"),
        ("ffffffffffffffff", "fffffffffffffff"),
        ("ffffffffffffffff", "+fffffffffffffff"),
        ("\"n_bytes\":77", "\"n_bytes\":78"),
        ("quoted", "quotes"),
        ("model.safetensors", "model.safetensor"),
        ("xxh3-64", "xxh3-65"),
        ("\"format_version\":2", "\"format_version\":1"),
        ("\"files\":[", "\"files\":[7,"),
        ("{", ""),
    ] {
        assert!(text.contains(from), "{from} is not in {text}");
        let damaged = text.replacen(from, to, 1);
        let error = SumsDocument::parse(damaged.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("delete it") && !error.contains('\n'), "{from}: {error}");
    }
}
