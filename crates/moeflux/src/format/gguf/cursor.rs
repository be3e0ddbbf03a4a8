//! Little-endian values of a file of which the first bytes are in memory.
//!
//! **Invariant:** nothing behind the end of the file is asked for, and nothing is allocated for
//! more than what is in memory.

use crate::error::grouped;
use crate::format::{FETCH_AGAIN, Problem, quoted};

/// What every file begins with.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// Tensors begin at multiples of this, unless a key says otherwise.
pub(super) const ALIGNMENT: u64 = 32;

/// Why a header could not be read from the bytes that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It goes on behind them, but within the file.
    Short,
    /// It is wrong.
    Wrong(Problem),
}

impl Stop {
    pub(super) fn wrong(problem: impl Into<String>) -> Self {
        Self::Wrong(Problem(problem.into()))
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    /// The first bytes of the file.
    bytes: &'a [u8],
    at: usize,
    /// Of the whole file.
    len_bytes: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], len_bytes: u64) -> Self {
        Self { bytes, at: 0, len_bytes }
    }

    /// Bytes that were read.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// So many bytes; `what` they are is for messages.
    pub(super) fn take(&mut self, n_bytes: u64, what: &str) -> Result<&'a [u8], Stop> {
        self.check_room(n_bytes, what)?;
        let n_bytes = usize::try_from(n_bytes).map_err(|_| Stop::Short)?;
        let end = self.at.checked_add(n_bytes).ok_or(Stop::Short)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(taken)
    }

    /// Checks that the file has so many bytes from here on.
    pub(super) fn check_room(&self, n_bytes: u64, what: &str) -> Result<(), Stop> {
        let room = self.len_bytes.saturating_sub(self.at());
        if n_bytes <= room {
            return Ok(());
        }
        let (len_bytes, at) = (grouped(self.len_bytes), grouped(self.at()));
        Err(Stop::wrong(if n_bytes > self.len_bytes {
            format!(
                "declares {} bytes for {what}, at byte {at} of a file of {len_bytes}: it is \
                 damaged",
                grouped(n_bytes)
            )
        } else {
            format!("ends at byte {len_bytes}, within its header, at {what}: {FETCH_AGAIN}")
        }))
    }

    /// Room for `n` elements of at least `element_bytes` each: no more than the bytes in memory may
    /// turn out to hold.
    pub(super) fn capacity(&self, n: u64, element_bytes: u64) -> usize {
        let n_here = (self.bytes.len() - self.at) as u64 / element_bytes.max(1);
        usize::try_from(n.min(n_here)).unwrap_or(0)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Stop> {
        let bytes = self.take(N as u64, what)?;
        bytes.try_into().map_err(|_| Stop::Short)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Stop> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Stop> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String, Stop> {
        let n_bytes = self.u64(what)?;
        let bytes = self.take(n_bytes, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => {
                let text = quoted(&String::from_utf8_lossy(bytes));
                Err(Stop::wrong(format!("has text that is not UTF-8, `{text}`, at {what}")))
            }
        }
    }
}
