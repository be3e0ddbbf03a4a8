//! Valid and malformed metadata of packed files.

use super::*;
use crate::format::parse_header;

const MATRIX: &str = r#"{"shape":[2,32],"kind":"affine","bits":4,"group_size":32,
    "scales":"BF16","codes_at":0,"scales_at":64,"biases_at":128}"#;

fn sound() -> Vec<(&'static str, String)> {
    let record = format!(r#"{{"gate_proj":{MATRIX},"up_proj":{MATRIX},"down_proj":{MATRIX}}}"#);
    [
        ("format", "moeflux-packed"),
        ("format_version", "1"),
        ("pack", "0123456789abcdef"),
        ("sums", "xxh3-64"),
        ("role", "experts"),
        ("experts_of", "model.layers.0.mlp"),
        ("record", &record),
    ]
    .map(|(key, value)| (key, value.to_owned()))
    .to_vec()
}

fn parse(
    fields: &[(&str, String)],
    (record_bytes, n_sums): (usize, usize),
) -> Result<Option<PackedFile>, ParseError> {
    let metadata: Map<String, Value> =
        fields.iter().map(|(key, value)| ((*key).to_owned(), value.as_str().into())).collect();
    let records_end = 3 * record_bytes;
    let end = records_end + 8 * n_sums;
    let header = serde_json::json!({
        "__metadata__": metadata,
        "records":
            {"dtype": "U8", "shape": [3, record_bytes], "data_offsets": [0, records_end]},
        "sums": {"dtype": "U64", "shape": [n_sums], "data_offsets": [records_end, end]},
    });
    parse_packed(&parse_header(header.to_string().as_bytes(), end as u64).unwrap())
}

#[test]
fn a_sound_file_is_read_as_it_was_meant() {
    let Ok(Some(file)) = parse(&sound(), (RECORD_ALIGN, 4)) else { panic!("not read") };
    assert_eq!((file.pack, file.sums.n_sums), (0x0123_4567_89ab_cdef, 3));
    let PackedRole::Experts(bank) = &file.role else { panic!("{file:?}") };
    assert_eq!((bank.n_experts, bank.record_bytes), (3, RECORD_ALIGN));
    assert_eq!(bank.matrices[2].biases_at, 128);
    let again = packed_metadata(file.pack, &file.role, &file.blocks);
    for (key, value) in sound() {
        let (found, value) = (again[key].as_str().unwrap(), value.as_str());
        match key {
            "record" => {
                let json = |text| serde_json::from_str::<Value>(text).unwrap();
                assert_eq!(json(found), json(value));
            }
            _ => assert_eq!(found, value),
        }
    }
}

#[track_caller]
fn refused(key: &str, value: Option<&str>, expected: &str) {
    let mut fields = sound();
    fields.retain(|(it, _)| *it != key);
    if let Some(value) = value {
        fields.push((key, value.to_owned()));
    }
    let ParseError(line) = parse(&fields, (RECORD_ALIGN, 4)).unwrap_err();
    assert!(line.contains(expected) && !line.contains('\n'), "{line}");
}

#[test]
fn each_wrong_key_is_named() {
    for key in ["format_version", "pack", "sums", "role", "experts_of", "record"] {
        refused(key, None, &format!("`{key}`"));
    }
    refused("format_version", Some("12"), "version \"12\"");
    for pack in ["", "+123456789abcdef", "0123456789abcdef0", "0123456789abcdeg"] {
        refused("pack", Some(pack), "16 hexadecimal");
    }
    refused("sums", Some("crc32"), "expected xxh3-64");
    refused("role", Some("expert"), "expected resident");
    refused("role", Some("resident"), "`norms`");
    refused("role", Some("extras"), "U64 [2]");
    refused("blocks", Some("{"), "`blocks` of its metadata is malformed");
    refused("blocks", Some(r#"{"records":"Q9_K"}"#), "`records` as \"Q9_K\", a type that");
    refused(
        "blocks",
        Some(r#"{"other":"Q8_0"}"#),
        "`other` as \"Q8_0\", but there is no U8 tensor",
    );
    refused("blocks", Some(r#"{"records":"Q8_0"}"#), "whole blocks");
    refused("record", Some("{"), "not JSON");
    refused("record", Some("[]"), "gate_proj");
    let record = &sound()[6].1;
    let wrong = |from: &str, to: &str, expected: &str| {
        refused("record", Some(&record.replacen(from, to, 1)), expected);
    };
    wrong("affine", "nvfp4", "\"nvfp4\", which this program does not know");
    wrong("[2,32]", "[2,32,1]", "gate_proj.shape");
    wrong("[2,32]", "[-2,32]", "gate_proj.shape");
    wrong("\"bits\":4", "\"bits\":400", "gate_proj.bits");
    wrong("BF16", "U32", "F32, F16 or BF16");
    wrong("128", "16385", "up to 16384");
    wrong("128", "-1", "gate_proj.biases_at");
}

#[test]
fn records_and_sums_must_fit_each_other() {
    for (shape, expected) in [
        ((RECORD_ALIGN, 3), "U64 [4]"),
        ((RECORD_ALIGN, 5), "U64 [4]"),
        ((RECORD_ALIGN / 2, 4), "multiple of 16384"),
        ((0, 4), "multiple of 16384"),
    ] {
        let ParseError(line) = parse(&sound(), shape).unwrap_err();
        assert!(line.contains(expected), "{line}");
    }
    let mut other = sound();
    other[0].1 = "pt".to_owned();
    assert_eq!(parse(&other, (7, 1)), Ok(None));
}
