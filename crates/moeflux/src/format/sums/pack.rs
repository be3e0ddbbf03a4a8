//! `moeflux-pack.json`: the checksums of a pack's small files, and of the checksum tables at the
//! end of its weight files.
//!
//! JSON: `format` is `moeflux-pack`, `format_version` 1, `sums` `xxh3-64`, `pack` the identifier in
//! all weight files; `weights` maps the name of each of these files to its last checksum, and
//! `documents` has length and checksum of each small file. **Invariant:** the last checksum of a
//! weight file covers all its other checksums, so that this document vouches for every byte of the
//! pack. `own` is the checksum of the document's contents, so that a damaged document is not
//! mistaken for other damage.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};

use moeflux_io::ReadFile;
use serde_json::{Map, Value, json};
use twox_hash::XxHash3_64;

use super::document::{hex, name_of, number};
use crate::error::{Error, Result};
use crate::format::checkpoint::{Checkpoint, PackedFolder};
use crate::format::packed::{PACK_METADATA, PACK_SUMS_NAME};
use crate::format::read::{read_file_if_there, read_range};
use crate::format::{ParseError, quoted};

/// The small files that a model needs to run. Any other file, such as a licence, may change.
const DOCUMENT_NAMES: [&str; 14] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors.index.json",
    PACK_METADATA,
    "special_tokens_map.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Upper bound on a small file. The largest, tokenizers and GGUF metadata, have 30 MB.
const DOCUMENT_BYTES_MAX: u64 = 128 << 20;

/// Upper bound on the document, which has a name and a checksum for each weight file and is far
/// shorter.
const FILE_BYTES_MAX: u64 = 16 << 20;

const FORMAT: &str = "moeflux-pack";
const VERSION: u64 = 1;

/// Advice for an unusable document.
const ADVICE: &str = "copy it again, or delete it and run `moeflux verify`, which writes it again";

/// Length and checksum of a small file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentSum {
    /// Its length.
    pub len_bytes: u64,
    /// XXH3-64 of its bytes.
    pub sum: u64,
}

/// The checksums of a pack's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackSums {
    /// Identifier of the pack, as in all its weight files.
    pub pack: u64,
    /// Last checksum of each weight file, by name.
    pub weights: BTreeMap<String, u64>,
    /// Small files by name.
    pub documents: BTreeMap<String, DocumentSum>,
}

/// A small file that differs from the packed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlteredDocument {
    /// Its path, also if it is missing.
    pub path: PathBuf,
    /// Its length now; 0 if it is missing.
    pub len_bytes: u64,
    /// The difference.
    pub problem: String,
}

impl PackSums {
    /// Returns whether a model needs the small file of this name to run.
    #[must_use]
    pub fn are_of(name: &str) -> bool {
        DOCUMENT_NAMES.contains(&name)
    }

    /// Loads the checksums of a folder. Returns `None` if it has none, because it is not packed or
    /// was packed by a version of moeflux that did not write them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Malformed`] for a damaged file.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        if !dir.is_dir() {
            return Ok(None);
        }
        let path = dir.join(PACK_SUMS_NAME);
        let Some(bytes) = read_file_if_there(&path, FILE_BYTES_MAX)? else { return Ok(None) };
        Self::parse(&bytes).map(Some).map_err(|problem| Error::malformed(&path, problem.0))
    }

    /// Computes the checksums of the small files as they are now, and of the weight files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or is not the one whose header was read.
    pub fn of_folder(checkpoint: &Checkpoint, packed: &PackedFolder) -> Result<Self> {
        let mut sums = Self::of_documents(packed.pack, &checkpoint.dir)?;
        for (file_idx, shard) in checkpoint.files.iter().enumerate() {
            sums.weights.insert(name_of(&shard.path), last_sum((checkpoint, packed), file_idx)?);
        }
        Ok(sums)
    }

    /// Computes the checksums of the small files of a folder, without weight files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn of_documents(pack: u64, dir: &Path) -> Result<Self> {
        let mut sums = Self { pack, ..Self::default() };
        for name in DOCUMENT_NAMES {
            if let Some(document) = DocumentSum::of_file(&dir.join(name))? {
                sums.documents.insert(name.to_owned(), document);
            }
        }
        Ok(sums)
    }

    /// Parses the bytes of a document.
    ///
    /// # Errors
    ///
    /// [`ParseError`] says what is wrong and how to fix it.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, ParseError> {
        let wrong = |problem: &str| ParseError(format!("{problem}; {ADVICE}"));
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| wrong(&format!("is damaged: {}", quoted(&error.to_string()))))?;
        let field = |key: &str| value.get(key).unwrap_or(&Value::Null);
        if field("format") != FORMAT || field("sums") != "xxh3-64" {
            return Err(wrong("is not a pack checksum file"));
        }
        if field("format_version") != VERSION {
            let version = quoted(&field("format_version").to_string());
            return Err(wrong(&format!("has version {version}; this program knows {VERSION}")));
        }
        let sums = Self::of_json(&value).ok_or_else(|| wrong("is damaged"))?;
        if *field("own") != hex(sums.own()) {
            return Err(wrong("is damaged: its own checksum does not match"));
        }
        Ok(sums)
    }

    /// Returns the document in its stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let weights = self.weights.iter().map(|(name, sum)| (name.clone(), hex(*sum).into()));
        let documents = self.documents.iter().map(|(name, document)| {
            let DocumentSum { len_bytes, sum } = document;
            (name.clone(), json!({"n_bytes": len_bytes, "sum": hex(*sum)}))
        });
        let value = json!({
            "format": FORMAT,
            "format_version": VERSION,
            "sums": "xxh3-64",
            "own": hex(self.own()),
            "pack": hex(self.pack),
            "weights": weights.collect::<Map<_, _>>(),
            "documents": documents.collect::<Map<_, _>>(),
        });
        format!("{value:#}\n").into_bytes()
    }

    /// Returns the small files that have changed since packing: different, missing or new ones.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn altered_documents(&self, dir: &Path) -> Result<Vec<AlteredDocument>> {
        let mut altered = Vec::new();
        for name in DOCUMENT_NAMES {
            let path = dir.join(name);
            let (found, packed) = (DocumentSum::of_file(&path)?, self.documents.get(name));
            let problem = match (found, packed) {
                (None, None) => continue,
                (Some(found), Some(packed)) if found == *packed => continue,
                (Some(found), Some(packed)) => format!(
                    "has checksum {} over {} bytes, but {} over {} when it was packed",
                    hex(found.sum),
                    found.len_bytes,
                    hex(packed.sum),
                    packed.len_bytes
                ),
                (None, Some(_)) => "is missing, but belongs to the pack".to_owned(),
                (Some(_), None) => "did not exist when the model was packed".to_owned(),
            };
            let len_bytes = found.map_or(0, |found| found.len_bytes);
            altered.push(AlteredDocument { path, len_bytes, problem });
        }
        Ok(altered)
    }

    /// Returns the first small file of `copy` that differs from the one in `dir`. A file missing
    /// from `copy` does not count as different.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn differing_document(dir: &Path, copy: &Path) -> Result<Option<PathBuf>> {
        for name in DOCUMENT_NAMES {
            let path = copy.join(name);
            let Some(copied) = DocumentSum::of_file(&path)? else { continue };
            if DocumentSum::of_file(&dir.join(name))? != Some(copied) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Refuses the folder if a small file has changed since packing.
    ///
    /// # Errors
    ///
    /// [`Error::Altered`] with the first such file; otherwise as [`PackSums::altered_documents`].
    pub fn check_documents(&self, dir: &Path) -> Result<()> {
        match self.altered_documents(dir)?.into_iter().next() {
            None => Ok(()),
            Some(AlteredDocument { path, problem, .. }) => Err(Error::Altered { path, problem }),
        }
    }

    /// Returns index and difference of each weight file that was not packed with the others.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if these checksums belong to another pack, if the folder is not packed,
    /// or if a weight file is missing; [`Error::Io`].
    pub fn foreign_files(&self, checkpoint: &Checkpoint) -> Result<Vec<(usize, String)>> {
        let path = || checkpoint.dir.join(PACK_SUMS_NAME);
        let Some(packed) = &checkpoint.packed else {
            let problem = "belongs to a pack, but the files of weights in this folder are not \
                           packed: move it away";
            return Err(Error::malformed(&path(), problem));
        };
        if packed.pack != self.pack {
            let problem = format!(
                "belongs to a different pack ({}) than the weight files ({}); {ADVICE}",
                hex(self.pack),
                hex(packed.pack)
            );
            return Err(Error::malformed(&path(), problem));
        }
        let names: Vec<String> = checkpoint.files.iter().map(|file| name_of(&file.path)).collect();
        if let Some(missing) = self.weights.keys().find(|name| !names.contains(name)) {
            let problem = "is missing, but belongs to the pack: copy it again";
            return Err(Error::malformed(&checkpoint.dir.join(missing), problem));
        }
        let mut foreign_files = Vec::new();
        for (file_idx, name) in names.iter().enumerate() {
            let found = last_sum((checkpoint, packed), file_idx)?;
            let problem = match self.weights.get(name) {
                Some(packed) if *packed == found => continue,
                Some(packed) => format!(
                    "its last checksum is {}, and {PACK_SUMS_NAME} has {}: it is damaged, or of \
                     the pack of another model; copy it again",
                    hex(found),
                    hex(*packed)
                ),
                None => format!("{PACK_SUMS_NAME} does not name it: move it away"),
            };
            foreign_files.push((file_idx, problem));
        }
        Ok(foreign_files)
    }

    /// Refuses the first weight file that was not packed with the others.
    ///
    /// # Errors
    ///
    /// As [`PackSums::foreign_files`]; [`Error::Malformed`] for such a file.
    pub fn check_weights(&self, checkpoint: &Checkpoint) -> Result<()> {
        match self.foreign_files(checkpoint)?.into_iter().next() {
            None => Ok(()),
            Some((file_idx, problem)) => {
                let path = checkpoint.files.get(file_idx).map(|file| file.path.as_path());
                Err(Error::malformed(path.unwrap_or(&checkpoint.dir), problem))
            }
        }
    }

    fn of_json(value: &Value) -> Option<Self> {
        let sum = |value: &Value| number(value.as_str()?.as_bytes().try_into().ok()?);
        let weight = |(name, value): (&String, &Value)| Some((name.clone(), sum(value)?));
        let document = |(name, value): (&String, &Value)| {
            let len_bytes = value.get("n_bytes")?.as_u64()?;
            Some((name.clone(), DocumentSum { len_bytes, sum: sum(value.get("sum")?)? }))
        };
        Some(Self {
            pack: sum(value.get("pack")?)?,
            weights: value
                .get("weights")?
                .as_object()?
                .iter()
                .map(weight)
                .collect::<Option<_>>()?,
            documents: {
                let documents = value.get("documents")?.as_object()?;
                documents.iter().map(document).collect::<Option<_>>()?
            },
        })
    }

    /// Returns the checksum of the contents. Lengths are hashed too, to delimit adjacent fields.
    fn own(&self) -> u64 {
        let mut hash = XxHash3_64::new();
        let mut add = |bytes: &[u8]| {
            hash.write(&(bytes.len() as u64).to_le_bytes());
            hash.write(bytes);
        };
        for number in [VERSION, self.pack, self.weights.len() as u64] {
            add(&number.to_le_bytes());
        }
        for (name, sum) in &self.weights {
            add(name.as_bytes());
            add(&sum.to_le_bytes());
        }
        for (name, DocumentSum { len_bytes, sum }) in &self.documents {
            add(name.as_bytes());
            add(&len_bytes.to_le_bytes());
            add(&sum.to_le_bytes());
        }
        hash.finish()
    }
}

impl DocumentSum {
    /// Computes length and checksum of `bytes`.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { len_bytes: bytes.len() as u64, sum: XxHash3_64::oneshot(bytes) }
    }

    /// Computes length and checksum of a file; `None` if it is absent.
    pub(crate) fn of_file(path: &Path) -> Result<Option<Self>> {
        let bytes = read_file_if_there(path, DOCUMENT_BYTES_MAX)?;
        Ok(bytes.map(|bytes| Self::of_bytes(&bytes)))
    }
}

/// Reads the last checksum of a packed file, which covers its header and its other checksums.
fn last_sum((checkpoint, packed): (&Checkpoint, &PackedFolder), file_idx: usize) -> Result<u64> {
    let (Some(shard), Some(table)) = (checkpoint.files.get(file_idx), packed.sums.get(file_idx))
    else {
        unreachable!("file {file_idx} has a table of sums")
    };
    let file = ReadFile::open(&shard.path).map_err(Error::io("open", &shard.path))?;
    shard.check_identity(file.identity())?;
    // Cannot overflow: the header was checked against the file's length.
    let at = shard.data_at + table.begin_bytes + table.n_sums as u64 * size_of::<u64>() as u64;
    let bytes = read_range(&file, &shard.path, at, size_of::<u64>() as u64)?;
    Ok(bytes.as_chunks::<8>().0.first().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}
