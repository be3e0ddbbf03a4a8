//! Individual malformed files, and random damage to valid ones.
#![expect(clippy::indexing_slicing, reason = "a test that panics has failed, as it should")]

use std::path::Path;

use moeflux_testing::random::Rng;
use moeflux_testing::temp_dir::TempDir;

use super::*;
use crate::error::Error;

const SOUND: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},
    "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
    "none":{"dtype":"U8","shape":[0,7],"data_offsets":[28,28]},
    "scalar":{"data_offsets":[28,36],"note":[{"any":null}],"dtype":"I64","shape":[]}}  "#;

/// A model's folder, deleted at the end of the test.
struct CheckpointFolder(TempDir);

impl CheckpointFolder {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        self.0.write(name, bytes);
        self
    }

    /// Writes a shard of one-byte tensors.
    fn shard(&self, file: &str, tensors: &[&str]) -> &Self {
        self.write(file, shard(tensors))
    }

    /// Writes an index of (tensor, file) pairs.
    fn index(&self, entries: &[(&str, &str)]) -> &Self {
        let map: Vec<String> =
            entries.iter().map(|(tensor, file)| format!("\"{tensor}\":\"{file}\"")).collect();
        let text = format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", map.join(","));
        self.write("model.safetensors.index.json", text)
    }

    #[track_caller]
    fn refuses(&self, expected: &str) {
        let message = Checkpoint::open(self.0.path()).unwrap_err().to_string();
        assert!(message.contains(expected), "`{message}` does not say `{expected}`");
        assert!(!message.contains('\n'), "{message}");
    }
}

fn shard(tensors: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = (0..)
        .zip(tensors)
        .map(|(at, name)| {
            let end = at + 1;
            format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{end}]}}"#)
        })
        .collect();
    file(&format!("{{{}}}", entries.join(",")), tensors.len())
}

fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data_bytes).map(|n| n.to_le_bytes()[0]));
    bytes
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    const PIECES: [&[u8]; 12] = [
        b"18446744073709551615",
        b"-1",
        b"1e400",
        b"0",
        b"[",
        b"{",
        b"\"",
        b"null",
        b"\\u0000",
        b"\xff",
        b"9223372036854775808",
        b"4294967296",
    ];
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len());
        let end = (at + rng.below(20)).min(bytes.len());
        match rng.below(4) {
            0 => bytes[at] = u8::try_from(rng.below(256)).unwrap(),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, PIECES[rng.below(PIECES.len())].iter().copied())),
            _ => {
                let piece = bytes[at..end].to_vec();
                let to = rng.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
}

#[test]
fn a_sound_header_is_read_in_order_of_its_bytes() {
    let header = parse_header(SOUND.as_bytes(), 36).unwrap();
    let rows: Vec<String> = header
        .tensors
        .iter()
        .map(|t| format!("{} {} {:?} {}+{}", t.name, t.dtype, t.shape, t.begin_bytes, t.len_bytes))
        .collect();
    let expected =
        ["a BF16 [2] 0+4", "b F32 [2, 3] 4+24", "none U8 [0, 7] 28+0", "scalar I64 [] 28+8"];
    assert_eq!(rows, expected);
    assert_eq!(header.metadata["format"], "pt");
    assert_eq!(parse_header(b"{}", 0).unwrap(), SafetensorsHeader::default());
}

#[test]
fn every_type_has_its_size() {
    let sizes = [("F32", 32), ("BF16", 16), ("F8_E4M3", 8), ("U32", 32), ("F64", 64), ("F4", 4)];
    for (name, bits) in sizes {
        let dtype = DType::from_name(name).unwrap();
        assert_eq!((dtype.name(), dtype.bits()), (name, Some(bits)));
    }
    assert_eq!(DType::from_name("f32"), None);
    let header = r#"{"x":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}}"#;
    assert_eq!(parse_header(header.as_bytes(), 3).unwrap().tensors[0].len_bytes, 3);
}

/// Describes a tensor of one-byte values from `begin` to `end`.
fn u8_at(begin: u64, end: u64) -> String {
    let n = end - begin;
    format!(r#"{{"dtype":"U8","shape":[{n}],"data_offsets":[{begin},{end}]}}"#)
}

#[track_caller]
fn header_refused(header: &str, data_bytes: u64, expected: &str) {
    let problem = parse_header(header.as_bytes(), data_bytes).unwrap_err().0;
    assert!(problem.contains(expected), "{header}: `{problem}` does not say `{expected}`");
}

#[test]
fn malformed_headers_are_refused_by_name() {
    let cases: Vec<(String, u64, &str)> = vec![
        (String::new(), 0, "not begin with `{`"),
        (" {}".into(), 0, "not begin with `{`"),
        ("[]".into(), 0, "not begin with `{`"),
        ("{".into(), 0, "malformed: EOF"),
        ("{} x".into(), 0, "trailing characters"),
        (format!(r#"{{"x":{0},"x":{0}}}"#, u8_at(0, 1)), 1, "lists `x` twice"),
        (format!(r#"{{"x":{0},"\u0078":{1}}}"#, u8_at(0, 1), u8_at(1, 2)), 2, "lists `x` twice"),
        (r#"{"x":7}"#.into(), 0, "expected tensor `x` as an object"),
        (
            r#"{"x":{"dtype":"Q4_K","shape":[1],"data_offsets":[0,1]}}"#.into(),
            1,
            "tensor `x`: unknown type `Q4_K`",
        ),
        (r#"{"x":{"shape":[1],"data_offsets":[0,1]}}"#.into(), 1, "`x`: `dtype` is missing"),
        (r#"{"x":{"dtype":"U8","data_offsets":[0,1]}}"#.into(), 1, "`x`: `shape` is missing"),
        (r#"{"x":{"dtype":"U8","shape":[1]}}"#.into(), 1, "`x`: `data_offsets` is missing"),
        (
            r#"{"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#.into(),
            1,
            "`x`: a key occurs twice",
        ),
        (
            r#"{"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#.into(),
            1,
            "tensor `x`: invalid value: integer `-1`",
        ),
        (
            r#"{"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#.into(),
            1,
            "tensor `x`: shape has more than 8 dimensions",
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.into(),
            4,
            "tensor `x`: shape [2] of F32 has 8 bytes, data_offsets [0, 4] hold 4",
        ),
        (
            r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#.into(),
            0,
            "too many values",
        ),
        (
            r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[4,3]}}"#.into(),
            4,
            "`x`: data_offsets [4, 3] end before they begin",
        ),
        (r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#.into(), 1, "tensor `x`: "),
        (
            r#"{"x":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#.into(),
            1,
            "12 bits, not whole bytes",
        ),
    ];
    for (header, data_bytes, expected) in cases {
        header_refused(&header, data_bytes, expected);
    }
}

#[test]
fn headers_that_do_not_cover_the_file_are_refused() {
    let cases: Vec<(String, u64, &str)> = vec![
        (format!(r#"{{"x":{}}}"#, u8_at(1, 2)), 2, "a hole before tensor `x`"),
        (
            format!(r#"{{"x":{},"y":{}}}"#, u8_at(0, 2), u8_at(3, 4)),
            4,
            "a hole before tensor `y`: it begins at byte 3 of the data, the tensors before it \
             end at 2",
        ),
        (
            format!(r#"{{"x":{},"y":{}}}"#, u8_at(0, 2), u8_at(1, 4)),
            4,
            "an overlap before tensor `y`",
        ),
        (format!(r#"{{"x":{}}}"#, u8_at(0, 9)), 5, "incomplete, fetch it again"),
        (format!(r#"{{"x":{}}}"#, u8_at(0, 9)), 10, "the file is damaged"),
        (r#"{"__metadata__":{"a":1}}"#.into(), 0, "invalid type: integer `1`"),
        (r#"{"__metadata__":{"a":"","a":""}}"#.into(), 0, "`__metadata__` has `a` twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), 0, "`__metadata__` occurs twice"),
        (format!(r#"{{"x":{{"more":{}}}}}"#, "[".repeat(200)), 0, "`x`: expected value"),
    ];
    for (header, data_bytes, expected) in cases {
        header_refused(&header, data_bytes, expected);
    }
}

#[test]
fn a_hostile_name_does_not_fill_the_screen() {
    let header = format!(r#"{{"\n\u001b{}":7}}"#, "x".repeat(100_000));
    let problem = parse_header(header.as_bytes(), 0).unwrap_err().0;
    assert!(problem.len() < 400, "{} bytes", problem.len());
    assert!(problem.contains(r"\n\u{1b}xxx"), "{problem}");
}

#[test]
fn a_hostile_prefix_is_refused_before_anything_is_allocated() {
    let folder = CheckpointFolder::new();
    let name = "model.safetensors";
    folder.write(name, b"abc").refuses("has only 3 bytes: fetch it again, or remove it");
    folder.write(name, [0xff; 64]).refuses("more than the limit of 100000000");
    let mut cut = 5000_u64.to_le_bytes().to_vec();
    cut.extend(b"{}");
    folder.write(name, cut).refuses("ends at byte 10, but its header extends to byte 5008");
    folder
        .write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0")
        .refuses("git lfs pull");
    let whole = shard(&["x", "y"]);
    let wanted = whole.len();
    folder
        .write(name, &whole[..wanted - 1])
        .refuses(&format!("ends at byte {}, but its header requires {wanted}", wanted - 1));
}

#[test]
fn one_file_is_a_checkpoint() {
    let folder = CheckpointFolder::new();
    folder.shard("model.safetensors", &["model.language_model.norm.weight", "lm_head.weight"]);
    folder.shard("._model.safetensors", &["rubbish"]);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let names: Vec<&str> = checkpoint.tensors.keys().map(String::as_str).collect();
    assert_eq!(names, ["lm_head.weight", "model.norm.weight"]);
    let entry = &checkpoint.tensors["lm_head.weight"];
    let bytes = std::fs::read(&checkpoint.files[entry.file_idx].path).unwrap();
    assert_eq!(checkpoint.files[0].len_bytes, bytes.len() as u64);
    let at = usize::try_from(entry.offset_bytes).unwrap();
    assert_eq!((bytes[at], entry.len_bytes), (1, 1));
    let original = &checkpoint.tensors["model.norm.weight"].name;
    assert_eq!(original, "model.language_model.norm.weight");
}

#[test]
fn the_header_hash_tells_checkpoints_apart() {
    let hash_of = |tensors: &[&str]| {
        let folder = CheckpointFolder::new();
        folder.shard("model.safetensors", tensors);
        Checkpoint::open(folder.0.path()).unwrap().files[0].header_hash
    };
    assert_eq!(hash_of(&["a", "b"]), hash_of(&["a", "b"]));
    assert_ne!(hash_of(&["a", "b"]), hash_of(&["a", "c"]));
}

#[test]
fn shards_of_an_index_are_one_checkpoint() {
    let folder = CheckpointFolder::new();
    folder.shard("2.safetensors", &["b", "c"]).shard("1.safetensors", &["a"]);
    folder.shard("consolidated.safetensors", &["a", "b", "c"]);
    folder.index(&[("c", "2.safetensors"), ("b", "2.safetensors"), ("a", "1.safetensors")]);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let places: Vec<_> =
        checkpoint.tensors.iter().map(|(name, entry)| (name.as_str(), entry.file_idx)).collect();
    assert_eq!(places, [("a", 0), ("b", 1), ("c", 1)]);
    assert!(checkpoint.files[0].path.ends_with("1.safetensors"));
}

#[test]
fn without_an_index_all_files_belong_together() {
    let folder = CheckpointFolder::new();
    folder.shard("b.safetensors", &["y"]).shard("a.safetensors", &["x"]);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    assert_eq!(checkpoint.tensors["y"].file_idx, 1);
    folder.shard("c.safetensors", &["x"]);
    folder.refuses("tensor `x`: is in `a.safetensors` and in `c.safetensors`");
}

#[test]
fn folders_that_do_not_hold_together_are_refused() {
    let folder = CheckpointFolder::new();
    folder.refuses("no *.safetensors files");
    folder.shard("1.safetensors", &["a"]);
    folder.index(&[("a", "1.safetensors"), ("b", "2.safetensors"), ("c", "3.safetensors")]);
    folder.refuses("2 of its 3 files are missing, the first is `2.safetensors`");
    folder.index(&[("a", "1.safetensors"), ("b", "1.safetensors")]);
    folder.refuses("tensor `b` is not in `1.safetensors`, where the index has it; and no other");
    folder.shard("2.safetensors", &["b"]);
    folder.index(&[("a", "1.safetensors")]).refuses("does not name `2.safetensors`");
    folder.index(&[("a", "2.safetensors"), ("b", "1.safetensors")]);
    folder.refuses("it is in `1.safetensors`: index and shards do not belong together");
    folder.shard("2.safetensors", &["a"]);
    folder.index(&[("a", "1.safetensors"), ("x", "2.safetensors")]);
    folder.refuses("tensor `a`: is in `1.safetensors` and in `2.safetensors`");
    folder.write("model.safetensors.index.json", "{").refuses("is not an index of shards");
}

#[test]
fn two_names_of_one_tensor_are_refused() {
    let folder = CheckpointFolder::new();
    folder.shard("m.safetensors", &["model.norm.weight", "language_model.model.norm.weight"]);
    folder.refuses(
        "tensor `language_model.model.norm.weight`: in `m.safetensors` has the same canonical name \
         as `model.norm.weight` in `m.safetensors`",
    );
}

#[test]
fn a_missing_folder_is_named() {
    let error = Checkpoint::open(Path::new("/nowhere/at/all")).unwrap_err().to_string();
    assert!(error.starts_with("cannot list /nowhere/at/all: "), "{error}");
}

#[test]
fn malformed_indices_are_refused() {
    let cases = [
        ("[]", "is not an index of shards"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":{}}"#, "weight_map is empty"),
        (r#"{"weight_map":[]}"#, "weight_map as an object"),
        (r#"{"weight_map":{"a":1}}"#, "expected a string"),
        (r#"{"weight_map":{"a":"x","a":"x"}}"#, "weight_map has `a` twice"),
        (r#"{"weight_map":{"a":"x"},"weight_map":{}}"#, "duplicate field"),
        (r#"{"weight_map":{"a":"../x"}}"#, "tensor `a` is said to be in `../x`"),
        (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "not the name of a file"),
        (r#"{"weight_map":{"a":"C:x"}}"#, "not the name of a file"),
        (r#"{"weight_map":{"a":".."}}"#, "not the name of a file"),
        (r#"{"weight_map":{"a":""}}"#, "not the name of a file"),
        (r#"{"weight_map":{"a":"sub\\x"}}"#, "not the name of a file"),
    ];
    for (text, expected) in cases {
        let problem = parse_index(text.as_bytes()).unwrap_err().0;
        assert!(problem.contains(expected), "{text}: `{problem}` does not say `{expected}`");
    }
}

#[test]
fn damaged_headers_and_indices_never_panic() {
    let index = r#"{"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors","b":"2"}}"#;
    let mut rng = Rng::new(0x5eed_0001);
    let mut n_sound = 0;
    for _ in 0..20_000 {
        let mut bytes = SOUND.as_bytes().to_vec();
        damage(&mut rng, &mut bytes);
        if let Ok(header) = parse_header(&bytes, 36) {
            n_sound += 1;
            let covered: u64 = header.tensors.iter().map(|tensor| tensor.len_bytes).sum();
            assert_eq!(covered, 36);
        }
        let mut bytes = index.as_bytes().to_vec();
        damage(&mut rng, &mut bytes);
        if let Ok(index) = parse_index(&bytes) {
            assert!(index.tensors.values().all(|&file_idx| file_idx < index.files.len()));
        }
    }
    // Otherwise almost no damaged header gets past the first checks.
    assert!(n_sound > 100, "{n_sound}");
}

#[test]
fn a_matrix_is_written_as_numpy_reads_it() {
    let folder = CheckpointFolder::new();
    let path = folder.0.file("x.npy");
    let mut writer = NpyWriter::create(&path, 2, 3).unwrap();
    writer.write_row(&[1.0, -2.0, 0.5]).unwrap();
    writer.write_row(&[f32::NAN, 0.0, 1e-40]).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
    let header_bytes = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((header_bytes + 10) % 64, 0);
    let text = std::str::from_utf8(&bytes[10..10 + header_bytes]).unwrap();
    assert_eq!(text.trim_end(), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
    assert!(text.ends_with('\n'));
    assert_eq!(bytes.len(), 10 + header_bytes + 24);
    assert_eq!(bytes[10 + header_bytes + 4..][..4], (-2.0_f32).to_le_bytes());
}

#[test]
fn config_getters_name_the_key_the_value_and_the_file() {
    let text = br#"{"a": 1, "s": "x", "f": 1.5, "n": null, "l": [1, 2], "bad": [1, "x"],
        "text_config": {"a": -3, "s": 5, "long": "LONG"}}"#;
    let text = String::from_utf8_lossy(text).replace("LONG", &"y".repeat(1000));
    let config = RawConfig::parse(Path::new("m/config.json"), text.as_bytes()).unwrap();
    let root = config.root();
    assert_eq!(root.usize_at("a").unwrap(), 1);
    assert_eq!(root.usize_opt("n").unwrap(), None);
    assert_eq!(root.f64_opt("a").unwrap(), Some(1.0));
    assert_eq!(root.usize_list_opt("l").unwrap(), Some(vec![1, 2]));
    let inner = config.text().unwrap();
    let check = |error: Error, expected: &str| assert_eq!(error.to_string(), expected);
    check(root.usize_at("zz").unwrap_err(), "m/config.json: key `zz` is missing");
    check(root.usize_at("n").unwrap_err(), "m/config.json: key `n` is missing");
    check(
        root.usize_opt("f").unwrap_err(),
        "m/config.json: `f` is 1.5; expected a non-negative integer",
    );
    check(
        inner.usize_at("a").unwrap_err(),
        "m/config.json: `text_config.a` is -3; expected a non-negative integer",
    );
    check(
        inner.str_opt("s").unwrap_err(),
        "m/config.json: `text_config.s` is 5; expected a string",
    );
    check(
        root.usize_list_opt("bad").unwrap_err(),
        "m/config.json: `bad` is a list of 2; expected a list of non-negative integers",
    );
    assert!(inner.bool_opt("long").unwrap_err().to_string().len() < 300);
}

#[test]
fn numbers_that_are_not_finite_are_read_and_refused_by_name_where_they_count() {
    let text = br#"{"model_type": "m", "limit": [0.0, Infinity], "eps": NaN, "n": -Infinity}"#;
    let config = RawConfig::parse(Path::new("c"), text).unwrap();
    let root = config.root();
    assert_eq!(root.str_opt("model_type").unwrap(), Some("m"));
    let lines = [
        root.f64_opt("eps").map(|_| ()),
        root.usize_opt("n").map(|_| ()),
        root.str_opt("eps").map(|_| ()),
        root.bool_opt("n").map(|_| ()),
        root.section("n").map(|_| ()),
        root.usize_list_opt("limit").map(|_| ()),
        root.str_list_opt("limit").map(|_| ()),
    ];
    let lines = lines.map(|it| it.unwrap_err().to_string());
    let expected = [
        "c: `eps` is NaN; expected a number",
        "c: `n` is -Infinity; expected a non-negative integer",
        "c: `eps` is NaN; expected a string",
        "c: `n` is -Infinity; expected true or false",
        "c: `n` is -Infinity; expected an object",
        "c: `limit` is a list of 2; expected a list of non-negative integers",
        "c: `limit` is a list of 2; expected a list of strings",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn configs_that_are_not_objects_are_refused() {
    let deep = "[".repeat(1000);
    for (text, expected) in [
        ("", "is not JSON: EOF"),
        ("[1]", "is a list, not a JSON object"),
        ("{\"a\": +Infinity}", "is not JSON"),
        ("NaN", "is a number, not a JSON object"),
        (deep.as_str(), "recursion limit"),
    ] {
        let error = RawConfig::parse(Path::new("c"), text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
