//! Positions of a session as bytes, which other sessions with matching properties can load.
//!
//! ```text
//! "MFXSTATE"  u32 version
//! [u8; 8] backend  [u8; 8] arithmetic  u32 version of the arithmetic  u64 model fingerprint
//! u32 n_layers, then per layer u32 kind and three u64: its geometry
//! u64 first position, u64 n_tokens, then u32 per token
//! u64 xxh3 of all bytes before
//! per page of at most 1,024 positions: what each layer keeps of them, u64 xxh3 of the page
//! per recurrent layer its state after the last position, then u64 xxh3 of these
//! ```
//! Little-endian. **Invariant:** compatibility is checked before anything after the header is read,
//! and no size is trusted that does not follow from the model. A failed load leaves the session as
//! it was: positions past its end are not used until the last byte has been verified.

mod header;

use std::io::{Read, Write};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

pub use header::SnapshotHeader;
pub(crate) use header::identity;

use crate::backend::session_budget::Booking;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::parts::pages;
use crate::session::runtime::Runtime;
use crate::session::runtime::loans::retry_after_lending;
use crate::session::sums::{HashingReader, HashingWriter, read_failed, write_failed};

/// Positions of a session, and the recurrent state after the last of them, in host memory.
#[derive(Debug)]
pub struct Snapshot {
    header: SnapshotHeader,
    bytes: Vec<u8>,
    _booking: Booking,
}

/// Bytes read at a time, so that a false length does not cause a large allocation.
const READ_BYTES: usize = 1 << 20;

impl Snapshot {
    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// Returns the bytes, in the format of [`crate::Engine::read_snapshot`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads a snapshot for sessions of an engine. Damage after the header is detected by
    /// [`Session::resume`].
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] if it does not fit or ends early; [`Error::NoRoom`] if memory is
    /// short.
    pub(crate) fn read(runtime: &Runtime, input: &mut dyn Read) -> Result<Self> {
        let header = SnapshotHeader::read(runtime, input)?;
        let mut bytes = Vec::new();
        header.write(runtime, &mut bytes).expect("memory takes all");
        let n_bytes = bytes.len() + header.n_bytes_after(runtime);
        let booking = book(runtime, n_bytes)?;
        while bytes.len() < n_bytes {
            let (begin, end) = (bytes.len(), n_bytes.min(bytes.len() + READ_BYTES));
            bytes.resize(end, 0);
            input.read_exact(&mut bytes[begin..]).map_err(read_failed)?;
        }
        Ok(Self { header, bytes, _booking: booking })
    }
}

impl Session {
    /// Copies some positions, and the recurrent state after the last of them.
    ///
    /// # Errors
    ///
    /// As [`Session::save_part`]; [`Error::NoRoom`] if memory is short.
    pub fn snapshot(&mut self, positions: impl RangeBounds<usize>) -> Result<Snapshot> {
        let positions = self.positions_of(&positions);
        let header = self.header_of(&positions)?;
        let runtime = Arc::clone(&self.runtime);
        let mut bytes = Vec::new();
        header.write(&runtime, &mut bytes).expect("memory takes all");
        let n_bytes = bytes.len() + header.n_bytes_after(&runtime);
        let booking = book(&runtime, n_bytes)?;
        bytes.clear();
        self.save_part(positions, &mut bytes)?;
        assert_eq!(bytes.len(), n_bytes, "a snapshot has the size that was booked");
        Ok(Snapshot { header, bytes, _booking: booking })
    }

    /// Continues with the positions of a snapshot, which must start at the session's end.
    ///
    /// # Errors
    ///
    /// As [`Session::load_state`].
    pub fn resume(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.load_state(&mut snapshot.as_bytes())
    }

    /// Writes the whole session. Checkpoints are not saved.
    ///
    /// # Errors
    ///
    /// As [`Session::save_part`].
    pub fn save_state(&mut self, out: &mut dyn Write) -> Result<()> {
        self.save_part(.., out)
    }

    /// Writes some positions of the session, and the recurrent state after the last of them.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for positions that the session does not have; [`Error::NoCheckpoint`] if
    /// the model has recurrent layers and neither the session nor a checkpoint ends at the last
    /// position; [`Error::SavedState`] if writing fails; errors of the device.
    pub fn save_part(
        &mut self,
        positions: impl RangeBounds<usize>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let positions = self.positions_of(&positions);
        let header = self.header_of(&positions)?;
        let runtime = Arc::clone(&self.runtime);
        self.apply_reset(&mut *runtime.lock()?);
        header.write(&runtime, out).map_err(write_failed)?;
        for page in pages(&positions) {
            let mut out = HashingWriter::new(&mut *out);
            self.write_page(&page, &mut out)?;
            out.write_sum().map_err(write_failed)?;
        }
        let mut out = HashingWriter::new(out);
        self.write_recurrent(positions.end, &mut out)?;
        out.write_sum().map_err(write_failed)
    }

    /// Continues with saved positions, which must start at the session's end: a session that was
    /// saved whole is loaded into an empty one.
    ///
    /// # Errors
    ///
    /// [`Error::SavedState`] if the bytes are damaged, of another model, backend, arithmetic or
    /// version, or longer than the context; [`Error::Input`] if the session does not end where the
    /// saved positions begin; [`Error::NoRoom`] if memory is short; errors of the device. The
    /// session is then as it was before.
    pub fn load_state(&mut self, input: &mut dyn Read) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        let header = SnapshotHeader::read(&runtime, input)?;
        let positions = header.positions();
        if positions.end > self.context {
            return Err(Error::SavedState(format!(
                "it ends at token {}, but this session's context is {}",
                positions.end, self.context
            )));
        }
        if positions.start != self.tokens.len() {
            return Err(Error::Input(format!(
                "saved positions {} to {} cannot follow the {} tokens of the session: cut it to {}",
                positions.start,
                positions.end,
                self.tokens.len(),
                positions.start
            )));
        }
        self.apply_reset(&mut *runtime.lock()?);
        self.reserve_for(&positions)?;
        for page in pages(&positions) {
            let mut input = HashingReader::new(input);
            self.load_page(&page, &mut input)?;
            input.check_sum()?;
        }
        let mut input = HashingReader::new(input);
        self.load_recurrent(&mut input)?;
        input.check_sum()?;
        self.commit_loaded(header.tokens())
    }

    /// Resolves a range to positions. Callers check that they exist.
    fn positions_of(&self, range: &impl RangeBounds<usize>) -> Range<usize> {
        let begin = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.tokens.len(),
        };
        begin..end
    }

    fn header_of(&self, positions: &Range<usize>) -> Result<SnapshotHeader> {
        self.check_positions(positions)?;
        self.check_recurrent(positions.end)?;
        let Range { start, end } = *positions;
        Ok(SnapshotHeader::new(start, self.tokens[start..end].to_vec()))
    }
}

fn book(runtime: &Runtime, n_bytes: usize) -> Result<Booking> {
    retry_after_lending(runtime, &mut *runtime.lock()?, &mut |_| {
        runtime.copies().book(n_bytes as u64, &|| "a snapshot of a session".to_owned())
    })
}
