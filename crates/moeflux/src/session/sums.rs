//! Checksums of written and read bytes.

use std::hash::Hasher as _;
use std::io::{self, Read, Write};

use twox_hash::XxHash3_64;

use crate::error::{Error, Result};

pub(super) fn write_failed(error: io::Error) -> Error {
    Error::SavedState(format!("cannot write: {error}"))
}

pub(super) fn read_failed(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::SavedState("unexpected end: truncated, or not a saved session".to_owned())
        }
        _ => Error::SavedState(format!("cannot read: {error}")),
    }
}

/// Hashes the bytes that it writes.
pub(super) struct HashingWriter<'a> {
    out: &'a mut dyn Write,
    hash: XxHash3_64,
}

impl<'a> HashingWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, hash: XxHash3_64::new() }
    }

    pub(super) fn write_sum(self) -> io::Result<()> {
        self.out.write_all(&self.hash.finish().to_le_bytes())
    }
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_bytes = self.out.write(bytes)?;
        self.hash.write(&bytes[..n_bytes]);
        Ok(n_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Hashes the bytes that it reads.
pub(super) struct HashingReader<'a> {
    input: &'a mut dyn Read,
    hash: XxHash3_64,
}

impl<'a> HashingReader<'a> {
    pub(super) fn new(input: &'a mut dyn Read) -> Self {
        Self { input, hash: XxHash3_64::new() }
    }

    pub(super) fn check_sum(self) -> Result<()> {
        let mut sum = [0; 8];
        self.input.read_exact(&mut sum).map_err(read_failed)?;
        if self.hash.finish() == u64::from_le_bytes(sum) {
            return Ok(());
        }
        Err(Error::SavedState("checksum mismatch: the data is damaged".into()))
    }
}

impl Read for HashingReader<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.input.read(target)?;
        self.hash.write(&target[..n_bytes]);
        Ok(n_bytes)
    }
}
