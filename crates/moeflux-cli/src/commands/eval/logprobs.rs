//! A file with one line per token: its log-probability.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use moeflux::sample::Scorer;
use moeflux::{Error, Result, TokenId};
use moeflux_io::create_file;
use serde_json::json;

use crate::system::out_file::OutFile;

/// The file while it is written.
pub(crate) struct Logprobs {
    file: OutFile,
    out: BufWriter<File>,
    path: PathBuf,
    scorer: Scorer,
}

impl Logprobs {
    /// Creates the file before anything is computed, so that an unusable path is refused at once.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = OutFile::new(path)?;
        let out = create_file(file.path()).map_err(Error::io("create", path))?;
        let (out, scorer) = (BufWriter::new(out), Scorer::new(0));
        Ok(Self { file, out, path: path.to_owned(), scorer })
    }

    /// Writes the tokens at the start of a window, which are not predicted.
    pub(crate) fn begin(&mut self, tokens: &[TokenId]) -> Result<()> {
        tokens.iter().try_for_each(|token| self.write_line(*token, None))
    }

    /// Writes the next token, given the logits before it.
    pub(crate) fn add(&mut self, logits: &[f32], token: TokenId) -> Result<()> {
        let logprob = self.scorer.score(logits, token)?.logprob;
        self.write_line(token, logprob)
    }

    fn write_line(&mut self, token: TokenId, logprob: Option<f32>) -> Result<()> {
        let line = json!({"token": token.0, "logprob": logprob});
        writeln!(self.out, "{line}").map_err(Error::io("write", &self.path))
    }

    /// Completes the file.
    pub(crate) fn finish(self) -> Result<()> {
        let Self { file, out, path, .. } = self;
        let flushed = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        drop(flushed.map_err(Error::io("write", &path))?);
        file.finish()
    }
}
