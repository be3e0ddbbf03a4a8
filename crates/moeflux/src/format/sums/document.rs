//! `moeflux-sums.json`: the checksums of a folder that is not packed, written by
//! `moeflux doctor --deep`.
//!
//! JSON: `format` is `moeflux-sums`, `format_version` 2, `sums` `xxh3-64`. Each file has its name,
//! its length, the sum of its header and, by tensor, the sums of its units, as 16 hexadecimal
//! digits each. **Invariant:** the bytes that a sum covers follow from the file's header alone.
//! `own` is the sum of the document's contents, so that a damaged document is not mistaken for
//! damaged weights.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use twox_hash::XxHash3_64;

use super::units::TensorUnit;
use crate::error::{Error, Result};
use crate::format::checkpoint::Checkpoint;
use crate::format::read::read_file_if_there;
use crate::format::{ParseError, quoted};

/// Name of the document in the model's folder.
pub const SUMS_FILE_NAME: &str = "moeflux-sums.json";

/// Upper bound on the document's length. The documents of the largest models are far shorter.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Version 1 had one sum for many small slices, which cannot be checked when a single slice is
/// streamed.
const VERSION: u64 = 2;

/// Advice for an unusable document.
pub(super) const ADVICE: &str =
    "delete it and let `moeflux doctor --deep` write it again, if you trust the model's files";

/// Checksums of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSums {
    /// Its length.
    pub len_bytes: u64,
    /// Checksum of its header.
    pub header: u64,
    /// Checksums by tensor, in byte order.
    pub tensors: BTreeMap<String, Vec<u64>>,
}

/// Checksums of a checkpoint, by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SumsDocument {
    /// Checksums by file name.
    pub files: BTreeMap<String, FileSums>,
}

impl SumsDocument {
    /// Builds the document from `units` in the order of [`super::tensor_units`] and their sums.
    #[must_use]
    pub fn new(checkpoint: &Checkpoint, units: &[TensorUnit], sums: &[u64]) -> Self {
        let of_shard = |shard: &super::ShardFile| FileSums {
            len_bytes: shard.len_bytes,
            header: shard.header_hash,
            tensors: BTreeMap::new(),
        };
        let mut files: Vec<FileSums> = checkpoint.files.iter().map(of_shard).collect();
        for (unit, sum) in units.iter().zip(sums) {
            if let Some(file) = files.get_mut(unit.file_idx) {
                file.tensors.entry(unit.tensor.clone()).or_default().push(*sum);
            }
        }
        let names = checkpoint.files.iter().map(|shard| name_of(&shard.path));
        Self { files: names.zip(files).collect() }
    }

    /// Reads the document at `path`. Returns `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Malformed`] if the file is not such a document, or is damaged.
    pub fn load(path: &Path) -> Result<Option<Self>> {
        let Some(bytes) = read_file_if_there(path, FILE_BYTES_MAX)? else { return Ok(None) };
        Self::parse(&bytes).map(Some).map_err(|problem| Error::malformed(path, problem.0))
    }

    /// Parses the bytes of a document.
    ///
    /// # Errors
    ///
    /// [`ParseError`] says what is wrong and how to fix it.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, ParseError> {
        let damaged = |problem: &str| ParseError(format!("{problem}; {ADVICE}"));
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| damaged(&format!("{error}")))?;
        let field = |key: &str| value.get(key).unwrap_or(&Value::Null);
        if field("format") != "moeflux-sums" || field("sums") != "xxh3-64" {
            return Err(damaged("is not a checksum file written by `moeflux doctor --deep`"));
        }
        if field("format_version") != VERSION {
            let version = quoted(&field("format_version").to_string());
            return Err(damaged(&format!("has version {version}; this program knows {VERSION}")));
        }
        let sums = Self::of_json(&value).ok_or_else(|| damaged("is damaged"))?;
        if *field("own") != hex(sums.own()) {
            return Err(damaged("is damaged: its own checksum does not match"));
        }
        Ok(sums)
    }

    /// Returns the document in its stored form.
    #[must_use]
    pub fn to_json(&self) -> Value {
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
            "format_version": VERSION,
            "sums": "xxh3-64",
            "own": hex(self.own()),
            "files": files.collect::<Vec<_>>(),
        })
    }

    /// Returns a function that looks up the sum of each unit, if there is one. It must be called
    /// with the units in the order of [`super::tensor_units`].
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the sums do not belong to the checkpoint's files.
    pub(super) fn sums_of<'a>(
        &'a self,
        checkpoint: &Checkpoint,
        path: &Path,
    ) -> Result<impl FnMut(&TensorUnit) -> Option<u64> + use<'a>> {
        let mut files = Vec::with_capacity(checkpoint.files.len());
        for shard in &checkpoint.files {
            let name = name_of(&shard.path);
            let found = self.files.get(&name);
            let is_same =
                |it: &&FileSums| it.len_bytes == shard.len_bytes && it.header == shard.header_hash;
            let Some(sums) = found.filter(is_same) else {
                let what = if found.is_none() {
                    "has no checksums of"
                } else {
                    "has checksums of another version of"
                };
                let problem = format!("{what} `{}`: {ADVICE}", quoted(&name));
                return Err(Error::malformed(path, problem));
            };
            files.push(sums);
        }
        // The units of a tensor are consecutive.
        let mut last: Option<(usize, String, usize)> = None;
        Ok(move |unit: &TensorUnit| {
            let number = match &last {
                Some((file_idx, tensor, number))
                    if *file_idx == unit.file_idx && *tensor == unit.tensor =>
                {
                    number + 1
                }
                _ => 0,
            };
            last = Some((unit.file_idx, unit.tensor.clone(), number));
            files.get(unit.file_idx)?.tensors.get(&unit.tensor)?.get(number).copied()
        })
    }

    fn of_json(value: &Value) -> Option<Self> {
        let mut files = BTreeMap::new();
        for file in value.get("files")?.as_array()? {
            let mut tensors = BTreeMap::new();
            for (name, digits) in file.get("tensors")?.as_object()? {
                let (sums, rest) = digits.as_str()?.as_bytes().as_chunks::<16>();
                let sums = sums.iter().map(number).collect::<Option<Vec<u64>>>()?;
                rest.is_empty().then_some(())?;
                tensors.insert(name.clone(), sums);
            }
            let len_bytes = file.get("n_bytes")?.as_u64()?;
            let header = number(file.get("header")?.as_str()?.as_bytes().try_into().ok()?)?;
            let sums = FileSums { len_bytes, header, tensors };
            files.insert(file.get("name")?.as_str()?.to_owned(), sums);
        }
        Some(Self { files })
    }

    /// Returns the checksum of the contents. Lengths are hashed too, to delimit adjacent fields.
    fn own(&self) -> u64 {
        let mut hash = XxHash3_64::new();
        let name_in = |hash: &mut XxHash3_64, name: &str| {
            hash.write(&(name.len() as u64).to_le_bytes());
            hash.write(name.as_bytes());
        };
        for (name, file) in &self.files {
            name_in(&mut hash, name);
            let n_tensors = file.tensors.len() as u64;
            for number in [VERSION, file.len_bytes, file.header, n_tensors] {
                hash.write(&number.to_le_bytes());
            }
            for (name, sums) in &file.tensors {
                name_in(&mut hash, name);
                hash.write(&(sums.len() as u64).to_le_bytes());
                sums.iter().for_each(|sum| hash.write(&sum.to_le_bytes()));
            }
        }
        hash.finish()
    }
}

/// Returns the last component of a path.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(super) fn hex(sum: u64) -> String {
    let mut digits = String::with_capacity(16);
    // Writing to a string cannot fail.
    let _infallible = write!(digits, "{sum:016x}");
    digits
}

/// Parses 16 lower-case hexadecimal digits.
pub(super) fn number(digits: &[u8; 16]) -> Option<u64> {
    let is_digit = |it: &u8| matches!(it, b'0'..=b'9' | b'a'..=b'f');
    let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(is_digit))?;
    u64::from_str_radix(text, 16).ok()
}
