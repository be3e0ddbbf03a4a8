//! Valid and malformed headers of GGUF files, and the files that contain them.
#![expect(clippy::indexing_slicing, reason = "a test that panics has failed, as it should")]

use std::path::Path;

use moeflux_testing::temp_dir::TempDir;

use super::builder::{GgufBuilder, text};
use super::*;
use crate::format::{BlockType, Checkpoint, DType};

fn parsed(bytes: &[u8]) -> Result<GgufHeader, GgufHeaderError> {
    parse_gguf(bytes, bytes.len() as u64)
}

#[test]
fn values_of_every_type_come_out() {
    let array = |type_id: u32, n: u64, values: &[u8]| {
        [&type_id.to_le_bytes()[..], &n.to_le_bytes(), values].concat()
    };
    let builder = GgufBuilder::new()
        .pair("u8", 0, &[200])
        .pair("i8", 1, &[0xfe])
        .pair("u16", 2, &[1, 2])
        .pair("i32", 5, &(-7_i32).to_le_bytes())
        .pair("f32", 6, &1.5_f32.to_le_bytes())
        .pair("bool", 7, &[1])
        .pair("u64", 10, &u64::MAX.to_le_bytes())
        .pair("i64", 11, &i64::MIN.to_le_bytes())
        .pair("f64", 12, &0.25_f64.to_le_bytes())
        .string("text", "ä")
        .pair("texts", 9, &array(8, 2, &[text("a"), text("")].concat()))
        .pair("integers", 9, &array(3, 2, &[0xff, 0xff, 1, 0]))
        .pair("floats", 9, &array(6, 1, &2.0_f32.to_le_bytes()))
        .pair("bools", 9, &array(7, 2, &[0, 1]));
    for version in [2, 3] {
        let mut bytes = builder.bytes();
        bytes[4] = version;
        let header = parsed(&bytes).unwrap();
        let get = |key: &str| header.metadata.get(key).unwrap().clone();
        assert_eq!(get("u8"), MetadataValue::U64(200));
        assert_eq!(get("i8"), MetadataValue::I64(-2));
        assert_eq!(get("u16"), MetadataValue::U64(513));
        assert_eq!(get("i32"), MetadataValue::I64(-7));
        assert_eq!(get("f32"), MetadataValue::F64(1.5));
        assert_eq!(get("bool"), MetadataValue::Bool(true));
        assert_eq!(get("u64"), MetadataValue::U64(u64::MAX));
        assert_eq!(get("i64"), MetadataValue::I64(i64::MIN));
        assert_eq!(get("f64"), MetadataValue::F64(0.25));
        assert_eq!(get("text"), MetadataValue::String("ä".to_owned()));
        assert_eq!(get("texts"), MetadataValue::Strings(vec!["a".to_owned(), String::new()]));
        assert_eq!(get("integers"), MetadataValue::Integers(vec![-1, 1]));
        assert_eq!(get("floats"), MetadataValue::Floats(vec![2.0]));
        assert_eq!(get("bools"), MetadataValue::Bools(vec![false, true]));
    }
}

/// All bytes before the data are read at once, so padding must be bounded.
#[test]
fn an_alignment_that_leaves_room_for_a_file_is_refused() {
    for (alignment, is_right) in [(1_u64, true), (1 << 20, true), (1 << 21, false), (48, false)] {
        let builder = GgufBuilder::new().pair("general.alignment", 10, &alignment.to_le_bytes());
        let mut bytes = builder.bytes();
        bytes.resize(1 << 22, 0);
        let found = parsed(&bytes);
        assert_eq!(found.is_ok(), is_right, "{alignment}: {found:?}");
    }
}

#[test]
fn an_array_that_would_grow_in_memory_is_refused() {
    let n = (1_u64 << 25) + 1;
    let array = [&0_u32.to_le_bytes()[..], &n.to_le_bytes()].concat();
    let builder = GgufBuilder::new().pair("long", 9, &array);
    // Only the beginning of the array is present.
    let found = parse_gguf(&builder.bytes(), 1 << 30);
    let Err(GgufHeaderError::Malformed(problem)) = found else { panic!("{found:?}") };
    assert!(problem.0.contains("33554433 elements at key `long`"), "{problem}");
}

#[test]
fn tensors_have_their_places_and_shapes() {
    let builder = GgufBuilder::new()
        .tensor("b", &[64, 3], 8, 64)
        .tensor("a", &[3, 5], 0, 0)
        .tensor("c", &[], 0, 288)
        .data(320);
    let header = parsed(&builder.bytes()).unwrap();
    let [a, b, c] = &header.tensors[..] else { panic!("{header:?}") };
    assert_eq!((a.name.as_str(), a.dtype, &a.shape[..]), ("a", DType::F32, &[5, 3][..]));
    assert_eq!((a.begin_bytes, a.len_bytes), (0, 60));
    assert_eq!((b.dtype, &b.shape[..]), (DType::Block(BlockType::Q8_0), &[3, 64][..]));
    assert_eq!((b.begin_bytes, b.len_bytes), (64, 204));
    assert_eq!((c.shape.len(), c.len_bytes), (0, 4));
    assert_eq!(header.end_bytes, header.data_at + 292);
    assert_eq!(header.data_at % 32, 0);
}

#[test]
fn header_errors_are_one_line() {
    let cases: [(&str, GgufBuilder, &str); 14] = [
        ("v1", GgufBuilder { version: 1, ..GgufBuilder::new() }, "GGUF version 1 (2023)"),
        ("v4", GgufBuilder { version: 4, ..GgufBuilder::new() }, "version 4; versions 2 and 3"),
        ("big-endian", GgufBuilder { version: 3 << 24, ..GgufBuilder::new() }, "big-endian"),
        (
            "keys",
            GgufBuilder { n_pairs: 1 << 60, ..GgufBuilder::new() },
            "for its keys (1,152,921,504,606,846,976)",
        ),
        ("tensors", GgufBuilder { n_tensors: 1 << 40, ..GgufBuilder::new() }, "for its tensors"),
        ("twice", GgufBuilder::new().u32("a", 1).u32("a", 1), "has key `a` twice"),
        ("kind", GgufBuilder::new().pair("a", 13, &[0]), "unknown type 13 at key `a`"),
        (
            "nested",
            GgufBuilder::new().pair(
                "a",
                9,
                &[&9_u32.to_le_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat(),
            ),
            "array of arrays at key `a`",
        ),
        ("alignment", GgufBuilder::new().u32("general.alignment", 24), "not a power of two"),
        ("type", GgufBuilder::new().tensor("t", &[32], 139, 0).data(32), "`t` of type 139"),
        ("rank", GgufBuilder::new().tensor("t", &[1; 5], 0, 0).data(32), "5 dimensions"),
        ("ragged", GgufBuilder::new().tensor("t", &[48], 8, 0).data(64), "blocks of 32 of Q8_0"),
        ("place", GgufBuilder::new().tensor("t", &[4], 0, 8).data(64), "not at a multiple of 32"),
        (
            "overlap",
            GgufBuilder::new().tensor("t", &[16], 0, 0).tensor("u", &[4], 0, 32).data(64),
            "an overlap before tensor `u`",
        ),
    ];
    for (what, builder, expected) in cases {
        let Err(GgufHeaderError::Malformed(problem)) = parsed(&builder.bytes()) else {
            panic!("{what}")
        };
        assert!(problem.0.contains(expected), "{what}: {problem}");
    }
    let huge = GgufBuilder::new().tensor("t", &[1 << 31, 1 << 31, 1 << 31], 0, 0);
    let Err(GgufHeaderError::Malformed(problem)) = parsed(&huge.bytes()) else { panic!("huge") };
    assert!(problem.0.contains("larger than any file"), "{problem}");
}

#[track_caller]
fn check_refused(path: &Path, expected: &str) {
    let message = Checkpoint::open(path).unwrap_err().to_string();
    assert!(message.contains(expected) && !message.contains('\n'), "{message}");
}

#[test]
fn a_truncated_file_is_refused_with_its_length() {
    let folder = TempDir::new();
    let builder = GgufBuilder::new().string("general.architecture", "x").tensor("t", &[1024], 0, 0);
    let bytes = builder.data(4096).bytes();
    let whole = folder.write("whole.gguf", &bytes);
    assert_eq!(Checkpoint::open(&whole).unwrap().tensors["t"].len_bytes, 4096);
    let cut = folder.write("cut.gguf", &bytes[..2000]);
    check_refused(&cut, "the download is incomplete: 2.00 kB of 4.22 kB; fetch it again");
    let cut = folder.write("header.gguf", &bytes[..50]);
    check_refused(&cut, "within its header");
    check_refused(&folder.write("none.gguf", b""), "is empty");
    check_refused(&folder.write("page.gguf", b"<html>"), "does not begin with `GGUF`");
    let few = "has only 2 bytes: the download is incomplete";
    check_refused(&folder.write("two.gguf", b"GG"), few);
    check_refused(
        folder.path(),
        "holds 6 GGUF models: name one of them, such as `cut.gguf` or `header.gguf`",
    );
}

#[test]
fn a_part_with_the_last_number_there_is_does_not_overflow() {
    let builder =
        GgufBuilder::new().string("general.architecture", "qwen3moe").u32("split.count", 2);
    let builder = builder.pair("split.no", 10, &u64::MAX.to_le_bytes());
    let folder = TempDir::new();
    let path = folder.write("one.gguf", builder.bytes());
    check_refused(&path, "of 2 of a split file");
}

#[test]
fn parts_of_a_split_file_are_found_by_any_of_their_names() {
    let folder = TempDir::new();
    let part = |number: u32, n: u32, n_tensors: u32| {
        let builder = if number == 0 {
            GgufBuilder::new()
                .string("general.architecture", "x")
                .u32("split.tensors.count", n_tensors)
        } else {
            GgufBuilder::new()
        };
        let builder = builder.u32("split.no", number).u32("split.count", n);
        builder.tensor(&format!("t{number}"), &[8], 0, 0).data(32).bytes()
    };
    let name = |number: u32| format!("m-{number:05}-of-00003.gguf");
    for number in 0..3 {
        folder.write(name(number + 1), part(number, 3, 3));
    }
    for path in [folder.file(name(1)), folder.file(name(3)), folder.path().to_owned()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!((checkpoint.files.len(), checkpoint.tensors.len()), (3, 3));
        assert_eq!(checkpoint.dir, folder.file(name(1)));
    }
    folder.write(name(1), part(0, 3, 4));
    check_refused(folder.path(), "declares 4 tensors in all parts, but they have 3");
    folder.write(name(2), part(2, 3, 3));
    check_refused(folder.path(), "says that it is part 3 of 3");
    std::fs::remove_file(folder.file(name(2))).unwrap();
    check_refused(
        &folder.file(name(3)),
        "is part 3 of 3 of a split file, and 1 of these is missing, the first is \
         `m-00002-of-00003.gguf`: fetch it to the same folder",
    );
    let renamed = folder.write("renamed.gguf", part(1, 3, 3));
    check_refused(
        &renamed,
        "is part 2 of 3 of a split file, and its name does not identify the others",
    );
}
