//! The work file of `moeflux eval --compare-model`: a line that says whose logits follow, then the
//! logits of the other model in f32, window by window, then the scores of a comparison with them.
//!
//! **Invariant:** every window has a checksum, which depends on the first line. Damaged logits and
//! those of another model or text give an error, never a result; damaged scores are computed again.
//! A window that was not written completely does not count. This module does not know models.

use std::fs::{File, TryLockError};
use std::hash::Hasher as _;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use moeflux::{Error, Result};
use moeflux_io::ReadFile;
use serde_json::{Value, json};
use twox_hash::XxHash3_64;

use crate::commands::eval::scores::{ComparedScore, TokenScore};
use crate::model;
use crate::system::disk;

const FORMAT: &str = "moeflux-eval-base";
const VERSION: u64 = 1;

/// Upper bound on the first line.
const LINE_BYTES_MAX: usize = 4096;

const SUM_BYTES: u64 = 8;
const LOGIT_BYTES: usize = size_of::<f32>();

/// Bytes of the score of a token: three f64, and whether the most probable tokens are the same.
const SCORE_BYTES: usize = 25;

/// Everything that the logits in a file follow from.
#[derive(Clone, Debug)]
pub(crate) struct BaseOrigin {
    /// Hash of the other model's files.
    pub(crate) model: u64,
    /// How the other model is run.
    pub(crate) run: String,
    /// Hash of the windows.
    pub(crate) texts: u64,
    pub(crate) vocab: usize,
    /// Predicted tokens of each window.
    pub(crate) n_predicted: Vec<usize>,
}

impl BaseOrigin {
    /// Returns the fields of the first line, each with its value, and with what a file with
    /// another value holds.
    fn fields(&self) -> [(&'static str, Value, &'static str); 7] {
        let n_tokens: usize = self.n_predicted.iter().sum();
        [
            ("format", json!(FORMAT), ""),
            ("version", json!(VERSION), "has another version of this format"),
            ("moeflux", json!(env!("CARGO_PKG_VERSION")), "was made by another version of moeflux"),
            ("model", json!(format!("{:016x}", self.model)), "has the logits of another model"),
            ("run", json!(self.run), "was made with another backend or arithmetic"),
            (
                "texts",
                json!(format!("{:016x}", self.texts)),
                "was made with other texts or windows",
            ),
            ("sizes", json!([n_tokens, self.vocab]), "was made with other texts or windows"),
        ]
    }

    /// Returns a name for the file of this origin.
    pub(crate) fn name(&self) -> String {
        let mut hash = XxHash3_64::new();
        self.fields().iter().for_each(|field| hash.write(field.1.to_string().as_bytes()));
        format!("eval-{:016x}.logits", hash.finish())
    }

    /// Returns the bytes before each window's logits, and those of all windows. A window ends with
    /// its checksum.
    fn offsets(&self) -> Vec<u64> {
        let mut offsets = vec![0];
        let mut end = 0;
        for n in &self.n_predicted {
            end += (n * self.vocab * LOGIT_BYTES) as u64 + SUM_BYTES;
            offsets.push(end);
        }
        offsets
    }
}

/// A work file.
pub(crate) struct BaseFile {
    path: PathBuf,
    file: File,
    origin: BaseOrigin,
    /// The start of each window's logits, and the end of the last ones, behind the first line.
    offsets: Vec<u64>,
    /// The first line; empty in a new file.
    line: Vec<u8>,
    /// Windows with all of their logits.
    n_windows: usize,
    /// The checksum of the window that is being written or read.
    hash: XxHash3_64,
    bytes: Vec<u8>,
}

impl BaseFile {
    /// Opens a file, or creates it if there is none, and checks that there is room for the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is another file, or has logits of another origin;
    /// [`Error::NoRoom`]; [`Error::Io`].
    pub(crate) fn open(path: &Path, origin: BaseOrigin) -> Result<Self> {
        let offsets = origin.offsets();
        // Refuses what is not a regular file, before it is opened for writing.
        let found = ReadFile::open_if_there(path).map_err(Error::io("open", path))?;
        let missing_bytes = offsets[origin.n_predicted.len()]
            .saturating_sub(found.map_or(0, |file| file.len_bytes()));
        disk::check_room(model::folder_of(path), 1, missing_bytes)?;
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(Error::io("open", path))?;
        // Where there are no file locks, checksums detect two runs with one file.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(Error::malformed(path, "is in use by another run: name another file"));
        }
        let len_bytes = file.metadata().map_err(Error::io("read", path))?.len();
        let (path, line, bytes) = (path.to_owned(), Vec::new(), Vec::new());
        let (n_windows, hash) = (0, XxHash3_64::new());
        let mut base = Self { path, file, origin, offsets, line, n_windows, hash, bytes };
        if len_bytes > 0 {
            base.read_line()?;
            let is_there = |window: &usize| base.at(window + 1) <= len_bytes;
            base.n_windows = (0..base.origin.n_predicted.len()).take_while(is_there).count();
        }
        Ok(base)
    }

    fn malformed(&self, problem: impl Into<String>) -> Error {
        Error::malformed(&self.path, problem)
    }

    fn io(&self, action: &'static str) -> impl Fn(std::io::Error) -> Error + use<'_> {
        move |error| Error::io(action, &self.path)(error)
    }

    fn read_line(&mut self) -> Result<()> {
        let mut start = Vec::new();
        let read = (&self.file).take(LINE_BYTES_MAX as u64).read_to_end(&mut start);
        read.map_err(self.io("read"))?;
        let line = start.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        let value: Option<Value> = serde_json::from_slice(line).ok();
        let value = value.filter(|value| value["format"] == FORMAT && line.ends_with(b"\n"));
        let Some(value) = value else {
            let problem = "is not a file of `moeflux eval --compare-base`: name another file";
            return Err(self.malformed(problem));
        };
        for (key, expected, problem) in self.origin.fields() {
            if value[key] != expected {
                let problem = format!("{problem}: name another file, or remove this one");
                return Err(self.malformed(problem));
            }
        }
        line.clone_into(&mut self.line);
        Ok(())
    }

    /// Returns the offset of a window, or the end of the last one.
    fn at(&self, window: usize) -> u64 {
        self.line.len() as u64 + self.offsets[window]
    }

    /// Returns the number of windows with all of their logits.
    pub(crate) fn n_windows(&self) -> usize {
        self.n_windows
    }

    /// Returns the size of the complete file without scores.
    pub(crate) fn full_bytes(&self) -> u64 {
        self.at(self.origin.n_predicted.len())
    }

    /// Returns whether logits of all windows are in the file.
    pub(crate) fn is_complete(&self) -> bool {
        self.n_windows == self.origin.n_predicted.len()
    }

    /// Writes the first line of a new file. `device` describes what computes; an unfinished file
    /// must have been begun on the same.
    pub(crate) fn begin(&mut self, device: &str) -> Result<()> {
        if !self.line.is_empty() {
            let value: Value = serde_json::from_slice(&self.line).unwrap_or_default();
            return if value["device"] == device {
                Ok(())
            } else {
                let problem = format!(
                    "was begun on another device ({}): remove it, and start anew",
                    value["device"]
                );
                Err(self.malformed(problem))
            };
        }
        let mut line = json!({"device": device});
        for (key, value, _) in self.origin.fields() {
            line[key] = value;
        }
        let line = format!("{line}\n").into_bytes();
        self.file.write_all(&line).map_err(self.io("write"))?;
        self.line = line;
        Ok(())
    }

    fn seek(&mut self, offset_bytes: u64) -> Result<()> {
        let sought = self.file.seek(SeekFrom::Start(offset_bytes));
        sought.map(drop).map_err(self.io("read"))
    }

    fn reset_hash(&mut self, window: usize) {
        self.hash = XxHash3_64::new();
        self.hash.write(&self.line);
        self.hash.write_u64(window as u64);
    }

    /// Begins to write the next window, behind the last complete one.
    pub(crate) fn begin_window(&mut self) -> Result<()> {
        let at = self.at(self.n_windows);
        self.file.set_len(at).map_err(self.io("write"))?;
        self.seek(at)?;
        self.reset_hash(self.n_windows);
        Ok(())
    }

    /// Writes the logits before the next predicted token of the window.
    pub(crate) fn write_row(&mut self, logits: &[f32]) -> Result<()> {
        self.bytes.clear();
        logits.iter().for_each(|logit| self.bytes.extend_from_slice(&logit.to_le_bytes()));
        self.hash.write(&self.bytes);
        self.file.write_all(&self.bytes).map_err(self.io("write"))
    }

    /// Completes the window.
    pub(crate) fn end_window(&mut self) -> Result<()> {
        let sum = self.hash.finish().to_le_bytes();
        self.file.write_all(&sum).map_err(self.io("write"))?;
        // The length of a file may reach the drive before its contents.
        self.file.sync_data().map_err(self.io("write"))?;
        self.n_windows += 1;
        Ok(())
    }

    /// Begins to read a window.
    pub(crate) fn begin_reading(&mut self, window: usize) -> Result<()> {
        self.seek(self.at(window))?;
        self.reset_hash(window);
        Ok(())
    }

    /// Reads the logits before the next predicted token of the window.
    pub(crate) fn read_row(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        self.bytes.resize(self.origin.vocab * LOGIT_BYTES, 0);
        self.file.read_exact(&mut self.bytes).map_err(Error::io("read", &self.path))?;
        self.hash.write(&self.bytes);
        logits.clear();
        let values = self.bytes.as_chunks::<LOGIT_BYTES>().0;
        logits.extend(values.iter().map(|value| f32::from_le_bytes(*value)));
        Ok(())
    }

    /// Compares the checksum of the window. Before that, nothing that was read may count.
    pub(crate) fn end_reading(&mut self, window: usize) -> Result<()> {
        let mut sum = [0; 8];
        self.file.read_exact(&mut sum).map_err(self.io("read"))?;
        match u64::from_le_bytes(sum) == self.hash.finish() {
            true => Ok(()),
            false => Err(self.malformed(format!(
                "is damaged: the checksum of window {} of {} is wrong; remove the file, and start \
                 anew",
                window + 1,
                self.origin.n_predicted.len()
            ))),
        }
    }

    /// Returns the scores of the first windows of a comparison with the model that `tested`
    /// describes, and removes others.
    pub(crate) fn read_scores(&mut self, tested: &str) -> Result<Vec<Vec<TokenScore>>> {
        let mut found = Vec::new();
        let mut at = self.full_bytes();
        self.seek(at)?;
        while let Some(n) = self.origin.n_predicted.get(found.len()).copied() {
            let mut bytes = vec![0; n * SCORE_BYTES];
            let mut sum = [0; 8];
            let file = &mut self.file;
            let is_read = file.read_exact(&mut bytes).and_then(|()| file.read_exact(&mut sum));
            let expected = self.scores_sum((tested, found.len()), &bytes);
            // After an interruption or a damage, these windows are computed again.
            if is_read.is_err() || u64::from_le_bytes(sum) != expected {
                break;
            }
            found.push(bytes.as_chunks().0.iter().map(score_of).collect());
            at += bytes.len() as u64 + SUM_BYTES;
        }
        self.file.set_len(at).map_err(self.io("write"))?;
        self.seek(at)?;
        Ok(found)
    }

    fn scores_sum(&self, (tested, window): (&str, usize), bytes: &[u8]) -> u64 {
        let mut hash = XxHash3_64::new();
        for part in [&self.line, tested.as_bytes(), &(window as u64).to_le_bytes(), bytes] {
            hash.write_u64(part.len() as u64);
            hash.write(part);
        }
        hash.finish()
    }

    /// Adds the scores of the next window.
    pub(crate) fn add_scores(
        &mut self,
        (tested, window): (&str, usize),
        scores: &[TokenScore],
    ) -> Result<()> {
        let mut bytes: Vec<u8> = scores.iter().flat_map(bytes_of).collect();
        let sum = self.scores_sum((tested, window), &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let end = self.file.seek(SeekFrom::End(0)).map_err(self.io("write"));
        end.and_then(|_| self.file.write_all(&bytes).map_err(self.io("write")))
    }

    /// Removes the file.
    pub(crate) fn remove(self) -> Result<()> {
        let Self { path, file, .. } = self;
        drop(file);
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))
    }
}

fn bytes_of(score: &TokenScore) -> [u8; SCORE_BYTES] {
    let compared = score.compared.expect("scores of a comparison");
    let mut bytes = [0; SCORE_BYTES];
    for (target, value) in
        bytes.as_chunks_mut::<8>().0.iter_mut().zip([score.nats, compared.nats, compared.kl])
    {
        *target = value.to_le_bytes();
    }
    bytes[SCORE_BYTES - 1] = compared.is_top_same.into();
    bytes
}

fn score_of(bytes: &[u8; SCORE_BYTES]) -> TokenScore {
    let (values, is_top_same) = bytes.as_chunks::<8>();
    let value = |idx: usize| f64::from_le_bytes(values[idx]);
    let is_top_same = is_top_same == [1];
    TokenScore {
        nats: value(0),
        compared: Some(ComparedScore { nats: value(1), kl: value(2), is_top_same }),
    }
}
