//! Journals of interrupted packs: an accepted journal is planned within its files, and nothing is
//! written before a run.
//!
//! Input: the journal. Its `pack`, and the device, inode and time of change of its files are
//! corrected. The files that it names are created as it describes them, unless they are too long.

use std::fs::{self, File};
use std::hash::Hasher as _;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Component, Path};

use moeflux::provider::format::PACK_JOURNAL;
use moeflux::provider::io::FileIdentity;
use moeflux::provider::pack::{PackOptions, Packing, SourceHandling};
use moeflux::provider::spec::QuantParams;
use serde_json::{Value, json};
use twox_hash::XxHash3_64;

use crate::support::{TempFolder, check_refusal};

const FILE_BYTES_MAX: u64 = 1 << 30;

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let (source, target) = (TempFolder::new("pack-source"), TempFolder::new("pack-target"));
    move |input| check(source.path(), &target, input)
}

fn check(source: &Path, target: &TempFolder, input: &[u8]) {
    let Ok(mut journal) = serde_json::from_slice::<Value>(input) else { return };
    for name in names(source) {
        fs::remove_file(source.join(name)).expect("a file of ours");
    }
    let mut files = journal.get("files").and_then(Value::as_array).cloned().unwrap_or_default();
    files.iter().for_each(|file| put_file(source, &journal, file));
    files.iter_mut().for_each(|file| identify(source, file));
    let pack = pack_of(&journal, &files);
    if let Some(map) = journal.as_object_mut() {
        map.insert("pack".to_owned(), json!(format!("{pack:016x}")));
        if map.contains_key("files") {
            map.insert("files".to_owned(), files.into());
        }
    }
    target.write(PACK_JOURNAL, journal.to_string().as_bytes());

    let (bits, group) = (small(&journal, "bits"), small(&journal, "group_size"));
    let params = (bits != 0).then_some(QuantParams { bits, group });
    let options =
        PackOptions { params, handling: SourceHandling::Kept, n_threads: NonZeroUsize::MIN };
    match Packing::prepare(source, target.path(), &options) {
        Ok(packing) => {
            assert!(packing.is_resumed() && packing.n_files() > 0);
            assert_eq!(packing.remaining_bytes(), packing.total_bytes());
            assert!(packing.room_bytes() <= packing.total_bytes());
        }
        Err(error) => check_refusal(&error),
    }
    assert_eq!(names(target.path()), [PACK_JOURNAL], "nothing is written");
}

fn small(value: &Value, key: &str) -> u8 {
    value.get(key).and_then(Value::as_u64).and_then(|it| u8::try_from(it).ok()).unwrap_or(0)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

fn len_bytes(file: &Value) -> u64 {
    file.get("len_bytes").and_then(Value::as_u64).unwrap_or(0)
}

/// Computes the correct `pack` of a journal.
fn pack_of(journal: &Value, files: &[Value]) -> u64 {
    let mut hash = XxHash3_64::new();
    let mut add = |bytes: &[u8]| {
        hash.write(&(bytes.len() as u64).to_le_bytes());
        hash.write(bytes);
    };
    add(&[2]);
    add(&[small(journal, "bits"), small(journal, "group_size")]);
    add(text(journal, "config").as_bytes());
    for file in files {
        add(text(file, "name").as_bytes());
        add(&len_bytes(file).to_le_bytes());
        add(&u64::from_str_radix(text(file, "sample"), 16).unwrap_or(0).to_le_bytes());
        add(&header_of(journal, file));
    }
    hash.finish()
}

/// Whether the source is a GGUF file.
fn is_gguf(journal: &Value) -> bool {
    journal.get("config").is_some_and(Value::is_null)
}

/// Returns the header of a file. For a GGUF file, the journal has it in hexadecimal digits.
fn header_of(journal: &Value, file: &Value) -> Vec<u8> {
    let header = text(file, "header").as_bytes();
    if !is_gguf(journal) {
        return header.to_vec();
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let (pairs, _) = header.as_chunks::<2>();
    pairs.iter().filter_map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Creates a file of the source with this header, if its name stays in the directory.
fn put_file(source: &Path, journal: &Value, file: &Value) {
    let (name, header) = (text(file, "name"), header_of(journal, file));
    let components: Vec<_> = Path::new(name).components().collect();
    if !matches!(components[..], [Component::Normal(_)]) || len_bytes(file) > FILE_BYTES_MAX {
        return;
    }
    // Names may be longer than the system allows.
    let Ok(mut out) = File::create(source.join(name)) else { return };
    if !is_gguf(journal) {
        let length = (header.len() as u64).to_le_bytes();
        out.write_all(&length).expect("room for a length");
    }
    out.write_all(&header).expect("room for a header");
    out.set_len(len_bytes(file)).expect("a file with a hole");
}

/// Enters the identity of the existing file: a file that may be another is compared by its bytes.
fn identify(source: &Path, file: &mut Value) {
    let Ok(found) = FileIdentity::of_path(&source.join(text(file, "name"))) else { return };
    let (device, inode) = found.number;
    let facts = [("device", json!(device)), ("inode", json!(inode))];
    for (key, fact) in facts.into_iter().chain([("changed_ns", json!(found.changed_ns))]) {
        if let Some(place) = file.get_mut(key) {
            *place = fact;
        }
    }
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(dir).expect("the folder is there");
    entries.map(|entry| entry.expect("its entry").file_name()).collect()
}
