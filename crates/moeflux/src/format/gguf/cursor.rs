//! Reads little-endian values of a file whose first bytes are in memory.
//!
//! **Invariant:** nothing past the end of the file is requested, and no allocation exceeds the
//! bytes in memory.

use crate::error::grouped;
use crate::format::{FETCH_AGAIN, ParseError, quoted};

/// The first bytes of every file.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// Alignment of tensors, unless a key overrides it.
pub(super) const ALIGNMENT: u64 = 32;

/// The reason why a header could not be read from the given bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GgufHeaderError {
    /// The header extends past them, but not past the end of the file.
    Incomplete,
    /// The header is malformed.
    Malformed(ParseError),
}

impl GgufHeaderError {
    pub(super) fn malformed(problem: impl Into<String>) -> Self {
        Self::Malformed(ParseError(problem.into()))
    }
}

/// A reader of a file's header, at a position in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderCursor<'a> {
    /// The first bytes of the file.
    bytes: &'a [u8],
    at: usize,
    /// Length of the whole file.
    len_bytes: u64,
}

impl<'a> HeaderCursor<'a> {
    pub(super) fn new(bytes: &'a [u8], len_bytes: u64) -> Self {
        Self { bytes, at: 0, len_bytes }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Takes the next `n_bytes`. `what` describes them in messages.
    pub(super) fn take(&mut self, n_bytes: u64, what: &str) -> Result<&'a [u8], GgufHeaderError> {
        self.check_room(n_bytes, what)?;
        let n_bytes = usize::try_from(n_bytes).map_err(|_| GgufHeaderError::Incomplete)?;
        let end = self.at.checked_add(n_bytes).ok_or(GgufHeaderError::Incomplete)?;
        let taken = self.bytes.get(self.at..end).ok_or(GgufHeaderError::Incomplete)?;
        self.at = end;
        Ok(taken)
    }

    /// Checks that the file has at least `n_bytes` from here on.
    pub(super) fn check_room(&self, n_bytes: u64, what: &str) -> Result<(), GgufHeaderError> {
        let room = self.len_bytes.saturating_sub(self.at());
        if n_bytes <= room {
            return Ok(());
        }
        let (len_bytes, at) = (grouped(self.len_bytes), grouped(self.at()));
        Err(GgufHeaderError::malformed(if n_bytes > self.len_bytes {
            format!(
                "declares {} bytes for {what}, at byte {at} of a file of {len_bytes}: it is \
                 damaged",
                grouped(n_bytes)
            )
        } else {
            format!("ends at byte {len_bytes}, within its header, at {what}: {FETCH_AGAIN}")
        }))
    }

    /// Returns a capacity for `n` elements of at least `element_bytes` each. It is at most the
    /// number that the bytes in memory can hold.
    pub(super) fn capacity(&self, n: u64, element_bytes: u64) -> usize {
        let n_here = (self.bytes.len() - self.at) as u64 / element_bytes.max(1);
        usize::try_from(n.min(n_here)).unwrap_or(0)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufHeaderError> {
        let bytes = self.take(N as u64, what)?;
        bytes.try_into().map_err(|_| GgufHeaderError::Incomplete)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufHeaderError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufHeaderError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String, GgufHeaderError> {
        let n_bytes = self.u64(what)?;
        let bytes = self.take(n_bytes, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => {
                let text = quoted(&String::from_utf8_lossy(bytes));
                Err(GgufHeaderError::malformed(format!(
                    "has text that is not UTF-8, `{text}`, at {what}"
                )))
            }
        }
    }
}
