//! Reads the payload of an object and compares its checksums.
//!
//! **Invariant:** no byte is handed out before the checksum of its MiB was right. Any failure is a
//! [`Miss`], after which the object is no longer found.

use std::io::{self, Read};
use std::sync::Arc;

use twox_hash::XxHash3_64;

use crate::error::{Miss, MissReason, ObjectDamage};
use crate::files::OpenedFile;
use crate::folder::OpenedObject;
use crate::header::{CHUNK_BYTES, FileLayout, ObjectHeader};
use crate::key::{ObjectId, PlaceHasher};
use crate::shared::Shared;

/// The payload of an object, from its first byte to its last.
#[derive(Debug)]
pub struct ObjectReader {
    shared: Arc<Shared>,
    header: ObjectHeader,
    layout: FileLayout,
    file: Box<dyn OpenedFile>,
    sums: Vec<u64>,
    /// Chunks that were loaded, and the bytes of the last one that were handed out.
    n_loaded: usize,
    n_taken: usize,
}

impl ObjectReader {
    /// Opens an object. `tokens` are those of the text at least up to its end.
    pub(crate) fn open(shared: &Arc<Shared>, id: ObjectId, tokens: &[u32]) -> Result<Self, Miss> {
        let opened = Self::try_open(shared, id, Some(tokens));
        opened.map_err(|reason| miss(shared, id, reason))
    }

    /// Opens an object whatever its tokens are.
    pub(crate) fn open_any(shared: &Arc<Shared>, id: ObjectId) -> Result<Self, Miss> {
        Self::try_open(shared, id, None).map_err(|reason| miss(shared, id, reason))
    }

    fn try_open(
        shared: &Arc<Shared>,
        id: ObjectId,
        tokens: Option<&[u32]>,
    ) -> Result<Self, MissReason> {
        let known = shared.state().index.get(&id).copied();
        let known = known.ok_or(MissReason::Missing)?;
        let path = shared.folder.object_path(&id);
        let OpenedObject { header, mut file } = shared.folder.open_object(&id, &path)?;
        if header.namespace != known.namespace {
            return Err(ObjectDamage::OtherObject.into());
        }
        if let Some(tokens) = tokens {
            check_tokens(&header, tokens)?;
        }
        let layout = header.layout()?;
        let sums_bytes = layout.file_bytes - layout.sums_at;
        let n_bytes = usize::try_from(sums_bytes).map_err(io::Error::other);
        let n_bytes = n_bytes.map_err(MissReason::Drive)?;
        let mut sums = Vec::new();
        if n_bytes > 0 {
            let loaded = file.load(layout.sums_at, n_bytes);
            loaded.map_err(|_| ObjectDamage::Unreadable)?;
            let (words, _) = file.loaded().as_chunks();
            sums.extend(words.iter().map(|&it| u64::from_le_bytes(it)));
        }
        let shared = Arc::clone(shared);
        Ok(Self { shared, header, layout, file, sums, n_loaded: 0, n_taken: 0 })
    }

    /// Returns what the file says of itself.
    #[must_use]
    pub fn header(&self) -> &ObjectHeader {
        &self.header
    }

    /// Returns what is left of the chunk that was loaded last.
    fn rest(&self) -> &[u8] {
        if self.n_loaded == 0 { &[] } else { &self.file.loaded()[self.n_taken..] }
    }

    fn load_next(&mut self) -> Result<(), MissReason> {
        let at = self.layout.payload_at + self.n_loaded as u64 * CHUNK_BYTES as u64;
        let n_bytes = (self.layout.sums_at - at).min(CHUNK_BYTES as u64);
        let n_bytes = usize::try_from(n_bytes).unwrap_or(CHUNK_BYTES);
        self.file.load(at, n_bytes).map_err(|_| ObjectDamage::Unreadable)?;
        if XxHash3_64::oneshot(self.file.loaded()) != self.sums[self.n_loaded] {
            return Err(ObjectDamage::Sum("payload").into());
        }
        (self.n_loaded, self.n_taken) = (self.n_loaded + 1, 0);
        Ok(())
    }
}

impl Read for ObjectReader {
    /// Fails with [`io::ErrorKind::InvalidData`] around a [`Miss`].
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.rest().is_empty() {
            if self.n_loaded == self.sums.len() || target.is_empty() {
                return Ok(0);
            }
            if let Err(reason) = self.load_next() {
                // Nothing is handed out after a failure.
                (self.n_loaded, self.n_taken) = (0, 0);
                self.sums.clear();
                let miss = miss(&self.shared, self.header.id, reason);
                return Err(io::Error::new(io::ErrorKind::InvalidData, miss));
            }
        }
        let n_bytes = self.rest().len().min(target.len());
        target[..n_bytes].copy_from_slice(&self.rest()[..n_bytes]);
        self.n_taken += n_bytes;
        Ok(n_bytes)
    }
}

/// Compares a text with an object: its keys, which stand for all tokens before it, and its tokens.
fn check_tokens(header: &ObjectHeader, tokens: &[u32]) -> Result<(), MissReason> {
    let range = usize::try_from(header.first).ok().zip(usize::try_from(header.end).ok());
    let within = range.filter(|&(_, end)| end <= tokens.len());
    let (first, end) = within.ok_or(MissReason::OtherTokens)?;
    let mut hasher = PlaceHasher::new(header.namespace);
    hasher.add(&tokens[..first]);
    let start_key = hasher.key();
    hasher.add(&tokens[first..end]);
    if (start_key, hasher.key()) != (header.id.start, header.id.end) {
        return Err(MissReason::OtherTokens);
    }
    if header.tokens != tokens[first..end] {
        return Err(ObjectDamage::OtherObject.into());
    }
    Ok(())
}

fn miss(shared: &Shared, id: ObjectId, reason: MissReason) -> Miss {
    shared.give_up(&id, &reason);
    Miss { id, reason }
}
