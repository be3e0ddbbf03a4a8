//! The checksums of a checkpoint's files, in a file beside them.
//!
//! JSON: `format` is `moeflux-sums`, `format_version` 1, `sums` `xxh3-64`; per file its name,
//! length, the sum of its header, and by tensor the sums of its units, 16 hexadecimal digits each.
//! **Invariant:** which bytes a sum is of follows from the file's header alone. `own` is the sum of
//! all that is said, so that a damaged file of sums accuses nobody.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use moeflux::error::{Error, Result};
use moeflux::format::{Checkpoint, TensorEntry};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::out_file::OutFile;

/// Its name, unless told otherwise.
pub(super) const FILE_NAME: &str = "moeflux-sums.json";

/// A file of sums of the largest models is far below this.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Longer tensors have a sum for each so many bytes, so that damage is found more closely and all
/// threads have work.
const UNIT_BYTES: u64 = 64 << 20;

/// Slices of stacked experts have a sum each, unless they are shorter than this.
const SLICE_BYTES_MIN: u64 = 16 << 10;

/// Bytes that have one sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) file_idx: usize,
    pub(super) first_bytes: u64,
    pub(super) len_bytes: u64,
    /// The tensor's name in its file.
    pub(super) tensor: String,
    /// Which of the tensor's slices, if it has any.
    pub(super) slice: Option<u64>,
}

/// All units of a checkpoint, in the order of files and bytes.
pub(super) fn units(checkpoint: &Checkpoint) -> Vec<Unit> {
    let mut units: Vec<Unit> = checkpoint.tensors.values().flat_map(units_of).collect();
    units.sort_by_key(|it| (it.file_idx, it.first_bytes, it.len_bytes));
    units
}

fn units_of(entry: &TensorEntry) -> impl Iterator<Item = Unit> {
    let slice_bytes = match entry.shape[..] {
        [n_slices, _, _] if n_slices > 1 => entry.len_bytes / n_slices as u64,
        _ => 0,
    };
    let is_sliced = slice_bytes >= SLICE_BYTES_MIN;
    let unit_bytes = if is_sliced { slice_bytes } else { UNIT_BYTES };
    (0..entry.len_bytes.div_ceil(unit_bytes)).map(move |number| {
        let skipped = number * unit_bytes;
        Unit {
            file_idx: entry.file_idx,
            first_bytes: entry.offset_bytes + skipped,
            len_bytes: unit_bytes.min(entry.len_bytes - skipped),
            tensor: entry.name.clone(),
            slice: is_sliced.then_some(number),
        }
    })
}

/// The sums of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileSums {
    pub(super) len_bytes: u64,
    /// Of its header.
    pub(super) header: u64,
    /// By tensor, in the order of bytes.
    pub(super) tensors: BTreeMap<String, Vec<u64>>,
}

/// The sums of a checkpoint, by the names of its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) files: BTreeMap<String, FileSums>,
}

impl Sums {
    /// Of these units, in the order of `units`.
    pub(super) fn new(checkpoint: &Checkpoint, units: &[Unit], sums: &[u64]) -> Self {
        let mut files: Vec<FileSums> = checkpoint
            .files
            .iter()
            .map(|shard| FileSums {
                len_bytes: shard.len_bytes,
                header: shard.header_hash,
                tensors: BTreeMap::new(),
            })
            .collect();
        for (unit, sum) in units.iter().zip(sums) {
            let tensors = &mut files[unit.file_idx].tensors;
            tensors.entry(unit.tensor.clone()).or_default().push(*sum);
        }
        let names = checkpoint.files.iter().map(|shard| name_of(&shard.path));
        Self { files: names.zip(files).collect() }
    }

    /// Reads them; none if there is no such file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Malformed`] for what is no file of sums, or a damaged one.
    pub(super) fn load(path: &Path) -> Result<Option<Self>> {
        let len_bytes = match fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", path)(error)),
        };
        let damaged = |problem: &str| {
            let way_out = "delete it and have it written anew, if you trust the model's files";
            Error::malformed(path, format!("{problem}; {way_out}"))
        };
        if len_bytes > FILE_BYTES_MAX {
            return Err(damaged("is too long for checksums"));
        }
        let bytes = fs::read(path).map_err(Error::io("read", path))?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&format!("{error}")))?;
        if value["format"] != "moeflux-sums" || value["sums"] != "xxh3-64" {
            return Err(damaged("is not a file of checksums by `moeflux doctor --deep`"));
        }
        if value["format_version"] != 1 {
            let version = &value["format_version"];
            return Err(damaged(&format!("has version {version}; this program knows 1")));
        }
        let sums = Self::of_json(&value).ok_or_else(|| damaged("is damaged"))?;
        if value["own"] != hex(sums.own()) {
            return Err(damaged("is damaged: its own checksum is another"));
        }
        Ok(Some(sums))
    }

    fn to_json(&self) -> Value {
        let files = self.files.iter().map(|(name, file)| {
            let tensors = file.tensors.iter().map(|(name, sums)| {
                let digits: String = sums.iter().map(|sum| hex(*sum)).collect();
                (name.clone(), Value::String(digits))
            });
            json!({
                "name": name,
                "n_bytes": file.len_bytes,
                "header": hex(file.header),
                "tensors": tensors.collect::<Map<_, _>>(),
            })
        });
        json!({
            "format": "moeflux-sums",
            "format_version": 1,
            "sums": "xxh3-64",
            "own": hex(self.own()),
            "files": files.collect::<Vec<_>>(),
        })
    }

    fn of_json(value: &Value) -> Option<Self> {
        let mut files = BTreeMap::new();
        for file in value["files"].as_array()? {
            let mut tensors = BTreeMap::new();
            for (name, digits) in file["tensors"].as_object()? {
                let (sums, rest) = digits.as_str()?.as_bytes().as_chunks::<16>();
                let sums =
                    sums.iter().map(|digits| number(digits)).collect::<Option<Vec<u64>>>()?;
                rest.is_empty().then_some(())?;
                tensors.insert(name.clone(), sums);
            }
            let len_bytes = file["n_bytes"].as_u64()?;
            let header = number(file["header"].as_str()?.as_bytes())?;
            let sums = FileSums { len_bytes, header, tensors };
            files.insert(file["name"].as_str()?.to_owned(), sums);
        }
        Some(Self { files })
    }

    /// The sum of all that they say. Lengths keep neighbours apart.
    fn own(&self) -> u64 {
        let mut hash = Xxh3::new();
        let name_in = |hash: &mut Xxh3, name: &str| {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
        };
        for (name, file) in &self.files {
            name_in(&mut hash, name);
            let n_tensors = file.tensors.len() as u64;
            for number in [file.len_bytes, file.header, n_tensors] {
                hash.update(&number.to_le_bytes());
            }
            for (name, sums) in &file.tensors {
                name_in(&mut hash, name);
                hash.update(&(sums.len() as u64).to_le_bytes());
                sums.iter().for_each(|sum| hash.update(&sum.to_le_bytes()));
            }
        }
        hash.digest()
    }
}

/// A file of sums to be written: begun before anything is read, so that a place where it cannot be
/// is refused at once.
#[derive(Debug)]
pub(super) struct Unwritten {
    out: OutFile,
    file: File,
}

impl Unwritten {
    /// For this path; nothing is there under its name before the end.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let out = OutFile::new(path)?;
        let file = File::create(out.path()).map_err(|source| {
            Error::Input(format!(
                "cannot write checksums to {}: {source}; --sums FILE puts them elsewhere",
                path.display()
            ))
        })?;
        Ok(Self { out, file })
    }

    /// Writes them, whole or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn finish(self, sums: &Sums) -> Result<()> {
        let Self { out, mut file } = self;
        let text = format!("{}\n", sums.to_json());
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(Error::io("write", out.path()))?;
        drop(file);
        out.finish()
    }
}

/// The name of a file in its folder.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn hex(sum: u64) -> String {
    let mut digits = String::with_capacity(16);
    let _ = write!(digits, "{sum:016x}");
    digits
}

fn number(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use moeflux::format::DType;

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
            (&[1 << 20, 150, 1], whole, 3, false),
        ] {
            let units: Vec<Unit> = units_of(&entry(shape, len_bytes)).collect();
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

    fn sums() -> Sums {
        let tensors = BTreeMap::from([
            ("a \"quoted\"".to_owned(), vec![0, u64::MAX]),
            ("empty".to_owned(), Vec::new()),
        ]);
        let file = FileSums { len_bytes: 77, header: 5, tensors };
        Sums { files: BTreeMap::from([("model.safetensors".to_owned(), file)]) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = TestDir::new("sums");
        let path = dir.path().join(FILE_NAME);
        assert_eq!(Sums::load(&path).unwrap(), None);
        Unwritten::begin(&path).unwrap().finish(&sums()).unwrap();
        assert_eq!(Sums::load(&path).unwrap(), Some(sums()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        Sums::load(dir.path()).unwrap_err();
        drop(Unwritten::begin(&dir.path().join("other")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = Unwritten::begin(&dir.path().join("no/where")).unwrap_err().to_string();
        assert!(error.contains("--sums FILE"), "{error}");
    }

    #[test]
    fn no_byte_can_change_unseen() {
        let dir = TestDir::new("sums-damaged");
        let path = dir.path().join(FILE_NAME);
        Unwritten::begin(&path).unwrap().finish(&sums()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("ffffffffffffffff", "fffffffffffffffe"),
            ("ffffffffffffffff", "fffffffffffffff"),
            ("\"n_bytes\":77", "\"n_bytes\":78"),
            ("quoted", "quotes"),
            ("model.safetensors", "model.safetensor"),
            ("xxh3-64", "xxh3-65"),
            ("\"format_version\":1", "\"format_version\":2"),
            ("\"files\":[", "\"files\":[7,"),
            ("{", ""),
        ] {
            assert!(text.contains(from), "{from} is not in {text}");
            fs::write(&path, text.replacen(from, to, 1)).unwrap();
            let error = Sums::load(&path).unwrap_err().to_string();
            assert!(error.contains("delete it") && !error.contains('\n'), "{from}: {error}");
        }
    }
}
