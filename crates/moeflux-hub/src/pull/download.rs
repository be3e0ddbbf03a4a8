//! A download in progress: its bytes at their offsets, the list of its pieces, and its hash. Pieces
//! are hashed in order as soon as they are complete, while they are still in the page cache.
//!
//! **Invariant:** a piece is listed after its bytes were written; it is read back for hashing, and
//! fetched again if it differs from the received bytes.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use super::BlobJob;
use crate::cache::journal::{self, Journal, PieceLayout};
use crate::cache::{Lock, ModelFolder};
use crate::error::{Error, Result};
use crate::file;
use crate::hash::Hasher;
use crate::stop::StopFlag;

/// The size of reads for hashing.
const HASH_BYTES: usize = 1 << 20;

/// Maximum number of pieces whose bytes differ when they are read back; a drive with more needs to
/// be replaced.
const N_LOST_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Download {
    pub(super) job: BlobJob,
    pub(super) layout: PieceLayout,
    file: File,
    path: std::path::PathBuf,
    state: Mutex<DownloadState>,
    /// The address of the contents, if the hub redirected the request.
    source: Mutex<Option<String>>,
    /// Keeps other processes from downloading the same contents.
    _lock: Lock,
}

/// The mutable part of a download.
#[derive(Debug)]
struct DownloadState {
    pieces: Vec<PieceState>,
    /// `None` after the download was published or discarded.
    journal: Option<Journal>,
    /// `None` while a thread is hashing, and at the end.
    hasher: Option<Hasher>,
    n_hashed: usize,
    n_lost: u32,
    /// Whether one connection fetches the whole file, from a server without range support.
    is_whole: bool,
}

/// The state of a piece of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceState {
    Missing,
    Fetching,
    Stored { sum: u64 },
}

/// The result of hashing.
#[derive(Debug, Default)]
pub(super) struct HashProgress {
    /// The hash, after the last piece.
    pub(super) digits: Option<String>,
    /// The number of bytes that differ from the received ones.
    pub(super) lost_bytes: u64,
}

impl Download {
    /// Opens a download, and resumes it if pieces exist.
    pub(super) fn open(
        job: BlobJob,
        folder: &ModelFolder,
        lock: Lock,
        piece_bytes: u64,
    ) -> Result<Self> {
        let layout = PieceLayout::new(job.n_bytes, piece_bytes);
        let path = folder.partial(&job.blob);
        file::make_parent(&path)?;
        let mut options = File::options();
        let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(Error::io("create", &path))?;
        let len_bytes = file.metadata().map_err(Error::io("read", &path))?.len();
        let list = folder.pieces(&job.blob);
        let mut stored = journal::pieces(&list, layout)?;
        stored.retain(|(idx, _)| layout.range(*idx).1 <= len_bytes);
        // Bytes after the end would become part of the contents.
        if len_bytes > job.n_bytes {
            file.set_len(job.n_bytes).map_err(Error::io("write", &path))?;
        }
        let mut pieces = vec![PieceState::Missing; layout.n_pieces()];
        for (idx, sum) in &stored {
            pieces[*idx] = PieceState::Stored { sum: *sum };
        }
        let state = DownloadState {
            pieces,
            journal: Some(Journal::begin(&list, layout, &stored)?),
            hasher: Some(job.blob.hasher(job.n_bytes)),
            n_hashed: 0,
            n_lost: 0,
            is_whole: false,
        };
        let (state, source) = (Mutex::new(state), Mutex::default());
        Ok(Self { job, layout, file, path, state, source, _lock: lock })
    }

    fn state(&self) -> MutexGuard<'_, DownloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes in complete pieces.
    pub(super) fn done_bytes(&self) -> u64 {
        let state = self.state();
        let stored_bytes = |(idx, it): (usize, &PieceState)| match it {
            PieceState::Stored { .. } => self.layout.len_bytes(idx),
            PieceState::Missing | PieceState::Fetching => 0,
        };
        state.pieces.iter().enumerate().map(stored_bytes).sum()
    }

    /// Claims a missing piece, and returns its index; `None` if there is none, or while one
    /// connection fetches the whole file.
    pub(super) fn claim_piece(&self) -> Option<usize> {
        let mut state = self.state();
        if state.is_whole {
            return None;
        }
        let idx = state.pieces.iter().position(|it| *it == PieceState::Missing)?;
        state.pieces[idx] = PieceState::Fetching;
        Some(idx)
    }

    /// Gives back a claimed piece if it was not fetched.
    pub(super) fn release_piece(&self, idx: usize) {
        let mut state = self.state();
        if state.pieces[idx] == PieceState::Fetching {
            state.pieces[idx] = PieceState::Missing;
        }
    }

    /// Claims the transfer of the whole file, from a server without range support. Returns whether
    /// the claim succeeded.
    pub(super) fn claim_whole(&self) -> bool {
        !std::mem::replace(&mut self.state().is_whole, true)
    }

    /// Ends the transfer of the whole file.
    pub(super) fn release_whole(&self) {
        self.state().is_whole = false;
    }

    /// Returns whether a piece is complete.
    pub(super) fn has(&self, idx: usize) -> bool {
        matches!(self.state().pieces[idx], PieceState::Stored { .. })
    }

    /// Writes bytes at an offset.
    pub(super) fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        file::write_all_at(&self.file, offset_bytes, bytes).map_err(Error::io("write", &self.path))
    }

    /// Records a piece that was written.
    pub(super) fn record_piece(&self, idx: usize, sum: u64) -> Result<()> {
        let mut state = self.state();
        state.pieces[idx] = PieceState::Stored { sum };
        match &mut state.journal {
            Some(journal) => journal.add(idx, sum).map_err(Error::io("write", &self.path)),
            None => Ok(()),
        }
    }

    /// Returns the address from which the contents are requested.
    pub(super) fn source(&self) -> String {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        source.clone().unwrap_or_else(|| self.job.url.clone())
    }

    /// Sets the address from which the contents are requested: the target of the hub's redirect, or
    /// `None` for the hub itself after the target has expired.
    pub(super) fn set_source(&self, url: Option<String>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }

    /// Hashes the next pieces in order, up to one that is incomplete, unless another thread is
    /// hashing. Stops at a piece whose bytes differ from the received ones, which is then missing
    /// again.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be read, [`Error::Cache`] after [`N_LOST_MAX`] such pieces,
    /// and [`Error::Cancelled`].
    pub(super) fn hash_ahead(&self, stop: &StopFlag) -> Result<HashProgress> {
        let mut state = self.state();
        let Some(mut hasher) = state.hasher.take() else { return Ok(HashProgress::default()) };
        let mut buffer = Vec::new();
        loop {
            let idx = state.n_hashed;
            if idx == state.pieces.len() {
                return Ok(HashProgress { digits: Some(hasher.finish()), lost_bytes: 0 });
            }
            let PieceState::Stored { sum } = state.pieces[idx] else {
                state.hasher = Some(hasher);
                return Ok(HashProgress::default());
            };
            drop(state);
            stop.check()?;
            buffer.resize(HASH_BYTES, 0);
            let before = hasher.clone();
            let is_unchanged = self.hash_piece(idx, sum, &mut hasher, &mut buffer)?;
            state = self.state();
            if is_unchanged {
                state.n_hashed += 1;
                continue;
            }
            state.hasher = Some(before);
            state.pieces[idx] = PieceState::Missing;
            state.n_lost += 1;
            if state.n_lost == N_LOST_MAX {
                let path = self.path.display();
                let problem = format!("{path}: {N_LOST_MAX} reads did not return what was written");
                return Err(Error::Cache(problem + ": check the drive and the memory"));
            }
            return Ok(HashProgress { digits: None, lost_bytes: self.layout.len_bytes(idx) });
        }
    }

    /// Adds a piece to the hash. Returns whether its bytes have the checksum of the received ones.
    fn hash_piece(
        &self,
        idx: usize,
        sum: u64,
        hasher: &mut Hasher,
        buffer: &mut [u8],
    ) -> Result<bool> {
        let (mut at, end) = self.layout.range(idx);
        let mut found = XxHash3_64::new();
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let len = left.min(buffer.len());
            let part = &mut buffer[..len];
            match file::read_exact_at(&self.file, at, part) {
                // The file was truncated by another program.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                read => read.map_err(Error::io("read", &self.path))?,
            }
            found.write(part);
            hasher.update(part);
            at += part.len() as u64;
        }
        Ok(found.finish() == sum)
    }

    /// Moves the contents to their final name.
    pub(super) fn publish(&self, folder: &ModelFolder) -> Result<()> {
        // After a power failure a name must not lead to contents that never reached the drive.
        self.file.sync_data().map_err(Error::io("write", &self.path))?;
        self.state().journal = None;
        let blob = folder.blob(&self.job.blob);
        moeflux_io::rename(&self.path, &blob).map_err(Error::io("rename", &self.path))?;
        file::remove_if_there(&folder.pieces(&self.job.blob))
    }

    /// Removes a download whose contents are wrong.
    pub(super) fn discard(&self, folder: &ModelFolder) -> Result<()> {
        self.state().journal = None;
        file::remove_if_there(&folder.pieces(&self.job.blob))?;
        file::remove_if_there(&self.path)
    }
}
