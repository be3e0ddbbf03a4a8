//! Writes an object: into a file without a name of its own until the drive has all of it.
//!
//! **Invariant:** an object that is not committed leaves nothing, and changes no older one.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use twox_hash::XxHash3_64;

use crate::error::{Error, WriteRefusal};
use crate::files::NewFile;
use crate::header::{CHUNK_BYTES, FileLayout, N_TOKENS_MAX, ObjectHeader};
use crate::index::ObjectEntry;
use crate::key::{ObjectId, ObjectKind, PlaceHasher, PrefixNamespace};
use crate::shared::{Shared, remove_if_there};

/// Room that is left to others on a drive.
pub const FREE_BYTES_MIN: u64 = 256 << 20;

/// An object to write.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// Where it may be used.
    pub namespace: PrefixNamespace,
    /// What it keeps.
    pub kind: ObjectKind,
    /// All tokens of the text up to the object's end.
    pub tokens: &'a [u32],
    /// The first position of a segment or of an answer; of a state, the number of tokens.
    pub first: usize,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// What computing it again would cost, in ms.
    pub saved_ms: u64,
}

/// An object that is being written. Dropping it gives it up.
#[derive(Debug)]
pub struct ObjectWriter {
    shared: Arc<Shared>,
    header: ObjectHeader,
    layout: FileLayout,
    part: PathBuf,
    file: Option<Box<dyn NewFile>>,
    chunk: Vec<u8>,
    sums: Vec<u64>,
    payload_bytes: u64,
    has_failed: bool,
    /// Whether it is committed or given up.
    is_over: bool,
}

impl ObjectWriter {
    /// Makes room for an object and writes its header.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        object: &NewObject<'_>,
    ) -> Result<Self, WriteRefusal> {
        let header = header_of(object, shared.folder.now().as_secs())?;
        let layout = header.layout().map_err(|_| WriteRefusal::Invalid("no file is that long"))?;
        let part = reserve(shared, &header, layout.file_bytes)?;
        let (chunk, sums) = (Vec::new(), Vec::new());
        let shared = Arc::clone(shared);
        let mut writer = Self {
            shared,
            header,
            layout,
            part,
            file: None,
            chunk,
            sums,
            payload_bytes: 0,
            has_failed: false,
            is_over: false,
        };
        let header = writer.header.to_bytes();
        let created = writer.shared.folder.files.create(&writer.part);
        let written = created.and_then(|file| writer.file.insert(file).write_all(&header));
        written.map_err(|error| writer.failed("create", error))?;
        Ok(writer)
    }

    /// Finishes the object. It is found from now on.
    ///
    /// # Errors
    ///
    /// The system's; [`WriteRefusal::Invalid`] if bytes are missing. The object is given up.
    pub fn commit(mut self) -> Result<ObjectId, WriteRefusal> {
        if self.has_failed || self.payload_bytes != self.header.payload_bytes {
            return Err(WriteRefusal::Invalid("not all of its bytes were written"));
        }
        self.finish().map_err(|error| self.failed("write", error))?;
        let id = self.header.id;
        let path = self.shared.folder.object_path(&id);
        let named = self.give_name(&path);
        named.map_err(|error| self.failed("rename", error))?;
        self.is_over = true;
        let (now, file_bytes) = (self.shared.folder.now(), self.layout.file_bytes);
        let mut state = self.shared.state();
        let (last_use, modified) = state.next_use(now);
        state.room.reserved_bytes -= file_bytes;
        state.pending.remove(&id);
        state.index.release(id.start);
        state.counts.n_written += 1;
        let (first, end, saved_ms) = (self.header.first, self.header.end, self.header.saved_ms);
        let namespace = self.header.namespace;
        let entry = ObjectEntry { namespace, first, end, file_bytes, saved_ms, modified, last_use };
        state.index.add(id, entry);
        drop(state);
        // The object is there, whether or not its time can be set.
        drop(self.shared.folder.files.set_modified(&path, modified));
        Ok(id)
    }

    fn finish(&mut self) -> io::Result<()> {
        if !self.chunk.is_empty() {
            self.write_chunk()?;
        }
        let sums: Vec<u8> = self.sums.iter().flat_map(|it| it.to_le_bytes()).collect();
        let file = self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        file.write_all(&sums)?;
        file.sync()
    }

    /// Gives the finished file its name.
    fn give_name(&mut self, path: &Path) -> io::Result<()> {
        let folder = &self.shared.folder;
        let parent = path.parent().unwrap_or(path);
        folder.files.make_folder(parent)?;
        // Windows renames no open file.
        drop(self.file.take());
        folder.files.rename(&self.part, path)?;
        let objects = folder.objects();
        for folder_path in [parent, &objects] {
            if folder.files.sync_folder(folder_path).is_err() {
                // The object is whole, and may only be lost with the power.
                self.shared.state().counts.n_drive_errors += 1;
            }
        }
        Ok(())
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        self.sums.push(XxHash3_64::oneshot(&self.chunk));
        let file = self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        file.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    fn failed(&mut self, action: &'static str, error: io::Error) -> WriteRefusal {
        self.has_failed = true;
        self.shared.state().counts.n_refused += 1;
        let error = Error::at(action, &self.part)(error);
        self.shared.count_error(error).into()
    }

    fn give_up(&mut self) {
        self.is_over = true;
        drop(self.file.take());
        let removed = remove_if_there(&self.shared.folder, &self.part);
        let mut state = self.shared.state();
        state.pending.remove(&self.header.id);
        state.index.release(self.header.id.start);
        state.room.reserved_bytes -= self.layout.file_bytes;
        if removed.is_err() {
            state.counts.n_drive_errors += 1;
            let leftover = (self.part.clone(), self.layout.file_bytes);
            state.room.leftovers.push(leftover);
        }
    }
}

impl Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left_bytes = self.header.payload_bytes - self.payload_bytes;
        if bytes.len() as u64 > left_bytes || self.has_failed {
            self.has_failed = true;
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more bytes than announced"));
        }
        let n_bytes = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..n_bytes]);
        self.payload_bytes += n_bytes as u64;
        if self.chunk.len() == CHUNK_BYTES {
            self.write_chunk().map_err(|error| {
                let kind = error.kind();
                io::Error::new(kind, self.failed("write", error).to_string())
            })?;
        }
        Ok(n_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up();
        }
    }
}

fn header_of(object: &NewObject<'_>, created_s: u64) -> Result<ObjectHeader, WriteRefusal> {
    let (tokens, first) = (object.tokens, object.first);
    let is_range = match object.kind {
        ObjectKind::Segment | ObjectKind::Answer => first < tokens.len(),
        ObjectKind::State => first == tokens.len() && first > 0,
    };
    if !is_range || (tokens.len() - first) as u64 > N_TOKENS_MAX {
        return Err(WriteRefusal::Invalid("its tokens do not fit its position"));
    }
    let mut hasher = PlaceHasher::new(object.namespace);
    hasher.add(&tokens[..first]);
    let start = hasher.key();
    hasher.add(&tokens[first..]);
    let id = ObjectId { end: hasher.key(), start, kind: object.kind };
    Ok(ObjectHeader {
        id,
        namespace: object.namespace,
        first: first as u64,
        end: tokens.len() as u64,
        payload_bytes: object.payload_bytes,
        saved_ms: object.saved_ms,
        created_s,
        tokens: tokens[first..].to_vec(),
    })
}

/// A file that is going to be written.
#[derive(Clone, Copy)]
struct PartFile {
    number: u64,
    n_bytes: u64,
}

/// Reserves the bytes of a file and returns where to write it.
fn reserve(
    shared: &Shared,
    header: &ObjectHeader,
    file_bytes: u64,
) -> Result<PathBuf, WriteRefusal> {
    let id = header.id;
    let folder = &shared.folder;
    let mut state = shared.state();
    if state.lock.is_none() {
        return Err(WriteRefusal::NotTheWriter);
    }
    if state.index.get(&id).is_some() || !state.pending.insert(id) {
        return Err(WriteRefusal::AlreadyThere);
    }
    // What leads to the object must not leave for it.
    state.index.hold(id.start);
    state.n_parts += 1;
    let part = PartFile { number: state.n_parts, n_bytes: file_bytes };
    drop(state);
    let reserved = reserve_bytes(shared, header, part);
    if reserved.is_err() {
        let mut state = shared.state();
        state.pending.remove(&id);
        state.index.release(id.start);
        state.counts.n_refused += 1;
    }
    reserved.map(|()| folder.part_path(part.number))
}

fn reserve_bytes(
    shared: &Shared,
    header: &ObjectHeader,
    part: PartFile,
) -> Result<(), WriteRefusal> {
    let file_bytes = part.n_bytes;
    let folder = &shared.folder;
    let n_bytes_max = shared.limits.n_bytes_max;
    if file_bytes > n_bytes_max {
        return Err(WriteRefusal::TooLarge { wanted_bytes: file_bytes, n_bytes_max });
    }
    let before = shared.state().day;
    let day = before.at(folder.now());
    let left_bytes = shared.limits.write_bytes_per_day.saturating_sub(day.written_bytes());
    if file_bytes > left_bytes {
        if day != before {
            // The clock went back: from here on, its next day counts.
            shared.state().day = day;
            drop(folder.write_small("written", part.number, day.to_text().as_bytes()));
        }
        return Err(WriteRefusal::OverDayBudget { wanted_bytes: file_bytes, left_bytes });
    }
    let free_bytes = folder.files.free_bytes(folder.path()).unwrap_or(u64::MAX);
    if free_bytes < file_bytes.saturating_add(FREE_BYTES_MIN) {
        return Err(WriteRefusal::DriveFull { wanted_bytes: file_bytes, free_bytes });
    }
    shared.make_room(header.namespace, file_bytes)?;
    // Counted before it is written, so that a process that keeps failing stays within the day.
    let day = {
        let mut state = shared.state();
        state.day = state.day.at(folder.now()).plus(file_bytes);
        state.day
    };
    folder.write_small("written", part.number, day.to_text().as_bytes()).map_err(|error| {
        shared.state().room.reserved_bytes -= file_bytes;
        shared.count_error(error).into()
    })
}
