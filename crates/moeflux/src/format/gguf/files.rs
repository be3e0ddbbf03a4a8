//! Finds the files of a GGUF model and reads their headers.
//!
//! **Invariant:** all parts of a split model are present and in the order of their names; otherwise
//! the error names the missing or misplaced part.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use moeflux_io::{FileIdentity, ReadFile};
use twox_hash::XxHash3_64;

use super::cursor::GgufHeaderError;
use super::header::{GgufHeader, parse_gguf};
use super::metadata::Metadata;
use crate::error::{ByteCount, Error, Result};
use crate::format::read::read_range;
use crate::format::{FETCH_AGAIN, quoted};

/// Upper bound on a header, as for safetensors. The largest vocabularies have 20 MB.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Length of the first read. It is quadrupled each time that the header extends further.
const FIRST_BYTES: u64 = 1 << 20;

/// Upper bound on the files of one model: forty times the largest known number.
const N_PARTS_MAX: usize = 99_999;

/// A file and its header.
#[derive(Debug)]
pub(crate) struct GgufFile {
    pub(crate) path: PathBuf,
    pub(crate) header: GgufHeader,
    pub(crate) len_bytes: u64,
    /// XXH3 of all bytes before the data.
    pub(crate) hash: u64,
    /// Identity of the file; `None` if only its header is known.
    pub(crate) identity: Option<FileIdentity>,
}

/// Returns the GGUF file that a path refers to: the path itself, or the only model in a folder
/// without safetensors. The model may be in a subfolder, as in repositories of the hub.
///
/// # Errors
///
/// [`Error::Malformed`] for a folder with several models; [`Error::Io`].
pub fn gguf_at(path: &Path) -> Result<Option<PathBuf>> {
    if path.is_file() {
        return Ok(Some(path.to_owned()));
    }
    if !path.is_dir() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for entry in entries(path)? {
        if entry.extension().is_some_and(|end| end == "safetensors") {
            return Ok(None);
        }
        if entry.is_dir() {
            // An unreadable subfolder is ignored.
            found.extend(entries(&entry).unwrap_or_default());
        } else {
            found.push(entry);
        }
    }
    found.retain(|path| path.file_name().and_then(OsStr::to_str).is_some_and(is_model));
    found.sort();
    let below = |file: &Path| file.strip_prefix(path).unwrap_or(file).to_owned();
    let name = |file: &Path| quoted(&below(file).to_string_lossy());
    match found.as_slice() {
        [] => Ok(None),
        [file] => Ok(Some(file.clone())),
        [first, second, ..] => {
            let problem = format!(
                "holds {} GGUF models: name one of them, such as `{}` or `{}`",
                found.len(),
                name(first),
                name(second)
            );
            Err(Error::malformed(path, problem))
        }
    }
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(Error::io("list", dir))?;
    entries.map(|entry| entry.map(|it| it.path()).map_err(Error::io("list", dir))).collect()
}

/// Returns whether a file of this name is a model or its first part. Image encoders (`mmproj`) are
/// excluded.
fn is_model(name: &str) -> bool {
    let has_end = Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    let is_first = part_of(name).is_none_or(|part| part.number == 1);
    has_end && is_first && !name.starts_with('.') && !name.starts_with("mmproj")
}

/// Reads the headers of the file at `path` and of the other parts of its model, in order.
pub(crate) fn read_all(path: &Path) -> Result<Vec<GgufFile>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(part) = part_of(&name) else {
        let file = read(path)?;
        let n_parts = split_count(&file.header.metadata);
        if n_parts > 1 {
            let number = file.header.metadata.count("split.no").unwrap_or(0).saturating_add(1);
            let problem = format!(
                "is part {number} of {n_parts} of a split file, and its name does not identify the \
                 others: give all of them the names that they were published under, such as \
                 NAME-{number:05}-of-{n_parts:05}.gguf"
            );
            return Err(Error::malformed(path, problem));
        }
        return Ok(vec![file]);
    };
    let paths: Vec<PathBuf> = (1..=part.n).map(|it| path.with_file_name(part.name(it))).collect();
    let missing: Vec<usize> =
        paths.iter().enumerate().filter(|(_, path)| !path.exists()).map(|(idx, _)| idx).collect();
    if let Some(&first) = missing.first() {
        let problem = format!(
            "is part {} of {} of a split file, and {} of these {} missing, the first is `{}`: \
             fetch {} to the same folder",
            part.number,
            part.n,
            missing.len(),
            if missing.len() == 1 { "is" } else { "are" },
            quoted(&part.name(first + 1)),
            if missing.len() == 1 { "it" } else { "them" },
        );
        return Err(Error::malformed(path, problem));
    }
    let files: Vec<GgufFile> = paths.iter().map(|path| read(path)).collect::<Result<_>>()?;
    for (file_idx, file) in files.iter().enumerate() {
        check_part(file, file_idx, part.n)?;
    }
    check_tensors(&files)?;
    Ok(files)
}

/// Reads a file that has metadata and no tensors.
pub(crate) fn read_metadata(path: &Path) -> Result<Metadata> {
    let file = read(path)?;
    if file.header.tensors.is_empty() {
        return Ok(file.header.metadata);
    }
    let problem = "has tensors, where only metadata is expected: pack the source again";
    Err(Error::malformed(path, problem))
}

/// The name of a part: `NAME-00001-of-00003.gguf`.
struct PartName<'n> {
    stem: &'n str,
    number: usize,
    n: usize,
    end: &'n str,
}

fn part_of(name: &str) -> Option<PartName<'_>> {
    let (base, end) = name.rsplit_once('.')?;
    let (rest, n) = base.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|it| it.is_ascii_digit());
        text.parse::<usize>().ok().filter(|_| is_number)
    };
    let (number, n) = (digits(number)?, digits(n)?);
    let is_part = end.eq_ignore_ascii_case("gguf") && (1..=n).contains(&number);
    (is_part && n <= N_PARTS_MAX).then_some(PartName { stem, number, n, end })
}

impl PartName<'_> {
    fn name(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}.{}", self.stem, self.n, self.end)
    }
}

fn split_count(metadata: &Metadata) -> u64 {
    metadata.count("split.count").unwrap_or(1)
}

/// Checks that the part number and count in a file match its name.
fn check_part(file: &GgufFile, file_idx: usize, n_parts: usize) -> Result<()> {
    let metadata = &file.header.metadata;
    let found = (metadata.count("split.no").unwrap_or(0), split_count(metadata));
    if found == (file_idx as u64, n_parts as u64) {
        return Ok(());
    }
    let problem = format!(
        "says that it is part {} of {}: give it the name that it was published under, or fetch it \
         again",
        found.0.saturating_add(1),
        found.1
    );
    Err(Error::malformed(&file.path, problem))
}

/// Checks that the total number of tensors in all parts matches the metadata of the first part.
fn check_tensors(files: &[GgufFile]) -> Result<()> {
    let Some(first) = files.first() else { return Ok(()) };
    let n_found: usize = files.iter().map(|file| file.header.tensors.len()).sum();
    match first.header.metadata.count("split.tensors.count") {
        Some(n) if n != n_found as u64 => {
            let problem = format!(
                "declares {n} tensors in all parts, but they have {n_found}: they do not belong \
                 together, download them again"
            );
            Err(Error::malformed(&first.path, problem))
        }
        _ => Ok(()),
    }
}

/// Reads the header of one file and checks that the file is long enough for its tensors.
fn read(path: &Path) -> Result<GgufFile> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    let header = parse(&file, path)?;
    let checked = GgufFile::new(path, header, file.len_bytes())?;
    let hash = XxHash3_64::oneshot(&read_range(&file, path, 0, checked.header.data_at)?);
    Ok(GgufFile { hash, identity: Some(file.identity()), ..checked })
}

impl GgufFile {
    /// Creates a file from its header, and checks that it is long enough for its tensors.
    fn new(path: &Path, header: GgufHeader, len_bytes: u64) -> Result<Self> {
        // A file without tensors may end before the aligned start of its data.
        let data_at = header.data_at.min(len_bytes);
        if len_bytes < header.end_bytes && !header.tensors.is_empty() {
            let (found, whole) = (ByteCount(len_bytes), ByteCount(header.end_bytes));
            let problem = format!(
                "the download is incomplete: {} of {}; fetch it again",
                found.rounded(),
                whole.rounded()
            );
            return Err(Error::malformed(path, problem));
        }
        let header = GgufHeader { data_at, ..header };
        Ok(Self { path: path.to_owned(), header, len_bytes, hash: 0, identity: None })
    }

    /// Creates a file from its first bytes.
    pub(crate) fn of_bytes(path: &Path, bytes: &[u8], len_bytes: u64) -> Result<Self> {
        match parse_gguf(bytes, len_bytes) {
            Ok(header) => {
                let file = Self::new(path, header, len_bytes)?;
                let n_bytes = usize::try_from(file.header.data_at).unwrap_or(usize::MAX);
                let hash = XxHash3_64::oneshot(bytes.get(..n_bytes).unwrap_or(bytes));
                Ok(Self { hash, ..file })
            }
            Err(GgufHeaderError::Malformed(problem)) => Err(Error::malformed(path, problem.0)),
            Err(GgufHeaderError::Incomplete) => {
                Err(Error::malformed(path, "has a longer header than was read"))
            }
        }
    }
}

fn parse(file: &ReadFile, path: &Path) -> Result<GgufHeader> {
    let len_bytes = file.len_bytes();
    if len_bytes == 0 {
        return Err(Error::malformed(path, format!("is empty: {FETCH_AGAIN}")));
    }
    let mut n_bytes = FIRST_BYTES;
    loop {
        let bytes = read_range(file, path, 0, n_bytes.min(len_bytes))?;
        match parse_gguf(&bytes, len_bytes) {
            Ok(header) => return Ok(header),
            Err(GgufHeaderError::Malformed(problem)) => {
                return Err(Error::malformed(path, problem.0));
            }
            Err(GgufHeaderError::Incomplete) if n_bytes < HEADER_BYTES_MAX => {
                n_bytes = (4 * n_bytes).min(HEADER_BYTES_MAX);
            }
            Err(GgufHeaderError::Incomplete) => {
                let problem = format!(
                    "has a header of more than {HEADER_BYTES_MAX} bytes, the limit: it is damaged"
                );
                return Err(Error::malformed(path, problem));
            }
        }
    }
}
