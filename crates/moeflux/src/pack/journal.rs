//! The state that an interrupted pack needs to resume: the source's config and headers, the
//! options, and the identity of its files. For a GGUF source the header replaces the config.
//!
//! **Invariant:** the journal is written first and deleted last. The plan follows from it alone, so
//! that a run can resume after source files were deleted. Its contents are treated as untrusted.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use moeflux_io::{FileIdentity, ReadFile};
use serde_json::{Map, Value, json};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::{
    Checkpoint, HEADER_BYTES_MAX, PackSums, header_bytes, read_file, read_file_if_there, read_range,
};
use crate::spec::QuantParams;
use crate::weights::{FileExtent, hash_of};

/// Upper bound on a config. The largest published ones have about 1 MB.
pub(super) const CONFIG_BYTES_MAX: u64 = 16 << 20;

const FORMAT: &str = "moeflux-pack-journal";
/// Version 1 identified a source file only by its length, header and modification time.
const VERSION: u64 = 2;

/// Upper bound on a journal. Headers grow by escaped quotation marks, or to twice their length as
/// hexadecimal digits.
const JOURNAL_BYTES_MAX: u64 = 4 * HEADER_BYTES_MAX;

/// The source and the options of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackJournal {
    /// Quantisation; `None` keeps all values.
    pub(super) params: Option<QuantParams>,
    /// The source's `config.json`; `None` for a GGUF file.
    pub(super) config: Option<String>,
    /// Files in order of name.
    pub(super) files: Vec<JournalFile>,
    /// Checksums of the small files except the config, by name.
    pub(super) documents: BTreeMap<String, u64>,
    /// Whether files are read back before they are renamed to their final names.
    pub(super) is_read_back: bool,
}

/// A file of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalFile {
    pub(super) name: String,
    pub(super) len_bytes: u64,
    /// Time of the last modification, in nanoseconds since 1970, if the system reports it.
    pub(super) modified_ns: Option<u64>,
    /// Device and inode, or their equivalent.
    pub(super) number: Option<(u64, u64)>,
    /// Time of the last change of contents, names or permissions, in nanoseconds since 1970.
    pub(super) changed_ns: Option<i64>,
    /// Hash of some of its bytes.
    pub(super) sample: u64,
    /// The header without its length prefix.
    pub(super) header: Vec<u8>,
}

impl JournalFile {
    /// Returns whether the system identifies this as the same file. Length, header and times alone
    /// could be those of a copy of another file.
    fn is(&self, found: FileIdentity) -> bool {
        (self.number, self.changed_ns) == (Some(found.number), found.changed_ns)
    }
}

impl PackJournal {
    /// Records a complete source.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or is not the one whose header was read.
    pub(super) fn of_source(
        (checkpoint, runs): (&Checkpoint, &[FileExtent]),
        config: Option<String>,
        documents: BTreeMap<String, u64>,
        params: Option<QuantParams>,
    ) -> Result<Self> {
        let mut files = Vec::new();
        for (file_idx, shard) in checkpoint.files.iter().enumerate() {
            let name = shard.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let header = match config {
                Some(_) => text_of(&shard.path, header_bytes(&shard.path)?)?.into_bytes(),
                None => first_bytes(&shard.path, shard.data_at)?,
            };
            files.push(JournalFile {
                name,
                len_bytes: shard.len_bytes,
                modified_ns: shard.identity.and_then(modified_ns),
                number: shard.identity.map(|it| it.number),
                changed_ns: shard.identity.and_then(|it| it.changed_ns),
                sample: hash_of(runs, file_idx, (&shard.open()?, &shard.path))?,
                header,
            });
        }
        Ok(Self { params, config, files, documents, is_read_back: false })
    }

    /// Reads the journal of an interrupted run.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a valid journal of this version; [`Error::Io`].
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = read_file(path, JOURNAL_BYTES_MAX)?;
        Self::parse(&bytes).ok_or_else(|| {
            let problem = "is not a journal of this version of moeflux: remove the whole folder \
                           and pack again; but if the source was being replaced, finish with \
                           the version that began";
            Error::malformed(path, problem)
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        if value.get("format")? != FORMAT || value.get("version")? != VERSION {
            return None;
        }
        let one_of = |key: &str, known: &[u8]| {
            let n = value.get(key)?.as_u64()?;
            known.iter().copied().find(|it| u64::from(*it) == n)
        };
        let params = match (value.get("bits")?, value.get("group_size")?) {
            (Value::Null, Value::Null) => None,
            _ => Some(QuantParams {
                bits: one_of("bits", &[2, 3, 4, 5, 6, 8])?,
                group: one_of("group_size", &[32, 64, 128])?,
            }),
        };
        let sum = |value: &Value| {
            let digits = value.as_str().filter(|it| it.len() == 16)?;
            u64::from_str_radix(digits, 16).ok()
        };
        let text = |value: &Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let config = match value.get("config")? {
            Value::Null => None,
            config => Some(config.as_str()?.to_owned()),
        };
        let file = |value: &Value| {
            let name = text(value, "name").filter(|name| is_plain_name(name))?;
            let len_bytes = value.get("len_bytes")?.as_u64()?;
            let modified_ns = value.get("modified_ns").and_then(Value::as_u64);
            let number = value.get("device")?.as_u64().zip(value.get("inode")?.as_u64());
            let changed_ns = value.get("changed_ns")?.as_i64();
            let sample = sum(value.get("sample")?)?;
            let header = text(value, "header")?;
            let header = match config {
                Some(_) => header.into_bytes(),
                None => of_hex(&header)?,
            };
            Some(JournalFile { name, len_bytes, modified_ns, number, changed_ns, sample, header })
        };
        let files = value.get("files")?.as_array()?;
        let files: Vec<JournalFile> = files.iter().map(file).collect::<Option<_>>()?;
        if config.is_none() && files.is_empty() {
            return None;
        }
        let document = |(name, value): (&String, &Value)| {
            is_plain_name(name).then_some(())?;
            Some((name.clone(), sum(value)?))
        };
        let documents = value.get("documents")?.as_object()?.iter().map(document);
        let documents = documents.collect::<Option<_>>()?;
        let is_read_back = value.get("is_read_back")?.as_bool()?;
        let journal = Self { params, config, files, documents, is_read_back };
        (value.get("pack")?.as_str()? == format!("{:016x}", journal.pack())).then_some(journal)
    }

    /// Returns the journal in its stored form.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let file = |file: &JournalFile| {
            let JournalFile { name, len_bytes, modified_ns, number, changed_ns, sample, header } =
                file;
            let header = match self.config {
                Some(_) => String::from_utf8_lossy(header).into_owned(),
                // Not text.
                None => to_hex(header),
            };
            json!({
                "name": name,
                "len_bytes": len_bytes,
                "modified_ns": modified_ns,
                "device": number.map(|it| it.0),
                "inode": number.map(|it| it.1),
                "changed_ns": changed_ns,
                "sample": format!("{sample:016x}"),
                "header": header,
            })
        };
        let files: Vec<Value> = self.files.iter().map(file).collect();
        let documents = self.documents.iter();
        let documents = documents.map(|(name, sum)| (name.clone(), format!("{sum:016x}").into()));
        let documents: Map<String, Value> = documents.collect();
        let value = json!({
            "format": FORMAT,
            "version": VERSION,
            "pack": format!("{:016x}", self.pack()),
            "bits": self.params.map(|params| params.bits),
            "group_size": self.params.map(|params| params.group),
            "is_read_back": self.is_read_back,
            "config": self.config,
            "documents": documents,
            "files": files,
        });
        value.to_string().into_bytes()
    }

    /// Returns the source's table of contents.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub(super) fn checkpoint(&self, source: &Path) -> Result<Checkpoint> {
        let files = self.files.iter();
        let files = files.map(|file| (file.name.as_str(), file.len_bytes, file.header.as_slice()));
        match self.config {
            Some(_) => Checkpoint::of_headers(source, files),
            None => Checkpoint::of_gguf_headers(source, files),
        }
    }

    /// Returns an identifier of source and options. It is reproducible, and differs between models
    /// of the same geometry.
    pub(super) fn pack(&self) -> u64 {
        let mut hash = XxHash3_64::new();
        let mut add = |bytes: &[u8]| {
            hash.write(&(bytes.len() as u64).to_le_bytes());
            hash.write(bytes);
        };
        add(&[u8::try_from(VERSION).unwrap_or(0)]);
        add(self.params.map_or([0, 0], |params| [params.bits, params.group]).as_slice());
        add(self.config.as_deref().unwrap_or_default().as_bytes());
        for file in &self.files {
            add(file.name.as_bytes());
            add(&file.len_bytes.to_le_bytes());
            add(&file.sample.to_le_bytes());
            add(&file.header);
        }
        hash.finish()
    }

    /// Checks that the source files that still exist are the original ones.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the file that differs; [`Error::Io`].
    pub(super) fn check_source(&self, source: &Path) -> Result<()> {
        for file in &self.files {
            let path = source.join(&file.name);
            if !path.exists() {
                continue;
            }
            let found = FileIdentity::of_path(&path).map_err(Error::io("look at", &path))?;
            if found.len_bytes != file.len_bytes || self.header_of(&path, file)? != file.header {
                return Err(is_another(&path));
            }
            let (before, now) = (file.modified_ns, modified_ns(found));
            if let (Some(before), Some(now)) = (before, now)
                && before != now
            {
                return Err(written_since(&path, before));
            }
        }
        let Some(config) = &self.config else { return Ok(()) };
        let path = source.join("config.json");
        match read_file_if_there(&path, CONFIG_BYTES_MAX)? {
            Some(bytes) if bytes != config.as_bytes() => Err(is_another(&path)),
            _ => Ok(()),
        }
    }

    /// Checks that the small files that still exist are the original ones.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the file that differs or is new.
    pub(super) fn check_documents(
        &self,
        source: &Path,
        found: &BTreeMap<String, u64>,
    ) -> Result<()> {
        // Any other file, such as a log, may have changed.
        let of_model = found.iter().filter(|(name, _)| PackSums::are_of(name));
        let other = of_model.into_iter().find(|it| self.documents.get(it.0) != Some(it.1));
        other.map_or(Ok(()), |(name, _)| Err(is_another(&source.join(name))))
    }

    /// Returns the present identity of each existing file that may not be the original one. Its
    /// sampled bytes are compared and match.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the file whose sampled bytes differ; [`Error::Io`].
    pub(super) fn doubtful(
        &self,
        checkpoint: &Checkpoint,
        runs: &[FileExtent],
    ) -> Result<Vec<Option<FileIdentity>>> {
        let mut doubtful = Vec::with_capacity(self.files.len());
        for (file_idx, (file, shard)) in self.files.iter().zip(&checkpoint.files).enumerate() {
            let path = &shard.path;
            let opened = ReadFile::open_if_there(path).map_err(Error::io("open", path));
            // An interrupted deletion leaves a dangling link.
            let opened = if path.exists() { opened? } else { None };
            let opened = opened.filter(|it| !file.is(it.identity()));
            if let Some(opened) = &opened
                && hash_of(runs, file_idx, (opened, path))? != file.sample
            {
                return Err(is_another(path));
            }
            doubtful.push(opened.map(|it| it.identity()));
        }
        Ok(doubtful)
    }

    /// Records these files as the original ones. No output made from their predecessors may remain.
    pub(super) fn adopt(&mut self, found: &[Option<FileIdentity>]) {
        for (file, found) in self.files.iter_mut().zip(found) {
            if let Some(found) = found {
                (file.number, file.changed_ns) = (Some(found.number), found.changed_ns);
            }
        }
    }

    /// Reads the present header of a file whose length has not changed.
    fn header_of(&self, path: &Path, file: &JournalFile) -> Result<Vec<u8>> {
        match self.config {
            Some(_) => header_bytes(path),
            None => first_bytes(path, file.len_bytes.min(file.header.len() as u64)),
        }
    }
}

fn is_another(path: &Path) -> Error {
    let problem = "is not the file that the interrupted pack began with: restore the original, or \
                   pack to another folder";
    Error::malformed(path, problem)
}

fn first_bytes(path: &Path, n_bytes: u64) -> Result<Vec<u8>> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    read_range(&file, path, 0, n_bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())
}

fn modified_ns(identity: FileIdentity) -> Option<u64> {
    let since_1970 = identity.modified?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since_1970.as_nanos()).ok()
}

/// Outputs made before and after a change of the source may not be consistent.
fn written_since(path: &Path, before_ns: u64) -> Error {
    let (seconds, rest_ns) = (before_ns / 1_000_000_000, before_ns % 1_000_000_000);
    let problem = format!(
        "was written to since the interrupted pack began: remove the target folder and pack again; \
         if its bytes are the same and only its time differs, \
         `touch -d @{seconds}.{rest_ns:09} FILE` restores that"
    );
    Error::malformed(path, problem)
}

fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| Error::malformed(path, "its header is not UTF-8: it is damaged"))
}

/// Returns whether joining `name` to a folder stays in that folder, on every system.
fn is_plain_name(name: &str) -> bool {
    !name.contains(['/', '\\', ':', '\0']) && !matches!(name, "" | "." | "..")
}
