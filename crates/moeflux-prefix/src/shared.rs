//! What the parts of a store share: the index, the room that is taken, and how room is made.
//!
//! **Invariant:** `Room` and index together count at least the bytes that the folder has. Nothing
//! waits for the drive while the state is locked, and only the writer's process changes the folder.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::budget::DayBudget;
use crate::error::{Error, MissReason, Result, WriteRefusal};
use crate::evict::{RoomNeed, next_victim};
use crate::files::HeldLock;
use crate::folder::{N_DAMAGED_KEPT, PrefixFolder};
use crate::index::{ObjectEntry, ObjectIndex};
use crate::key::{ObjectId, PrefixNamespace, SECRET_BYTES};

/// Bounds of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Bytes of all files of objects, unfinished and damaged ones included.
    pub n_bytes_max: u64,
    /// Bytes that may be written on one day.
    pub write_bytes_per_day: u64,
}

/// What a store did since it was opened, and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounts {
    /// Objects that can be found.
    pub n_objects: usize,
    /// Bytes of all files. While objects leave for another one, the bytes of both are counted.
    pub n_bytes: u64,
    /// Their bound.
    pub n_bytes_max: u64,
    /// Bytes that were written today.
    pub written_today_bytes: u64,
    /// Their bound.
    pub write_bytes_per_day: u64,
    /// Objects that were written.
    pub n_written: u64,
    /// Objects that were not written, because of a bound, the drive's room or the system.
    pub n_refused: u64,
    /// Objects that left for others.
    pub n_evicted: u64,
    /// Objects that could not be used.
    pub n_misses: u64,
    /// Files that were found damaged: when they were to be used, or when this process became the
    /// writer.
    pub n_damaged: u64,
    /// Operations that the system refused.
    pub n_drive_errors: u64,
}

/// The folder, its bounds and its state.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: PrefixFolder,
    pub(crate) limits: StoreLimits,
    state: Mutex<StoreState>,
}

/// What changes while a store is open.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    /// Held by the writer.
    pub(crate) lock: Option<Box<dyn HeldLock>>,
    pub(crate) index: ObjectIndex,
    pub(crate) room: Room,
    /// Objects that are being written.
    pub(crate) pending: HashSet<ObjectId>,
    pub(crate) day: DayBudget,
    pub(crate) counts: StoreCounts,
    pub(crate) secret: Option<[u8; SECRET_BYTES]>,
    /// The number of the latest use, and the time that its files got.
    pub(crate) last_use: u64,
    pub(crate) last_stamp: Duration,
    /// Makes names in `tmp` unique.
    pub(crate) n_parts: u64,
}

/// Bytes of the folder that the index does not count.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Of objects that are being written or removed.
    pub(crate) reserved_bytes: u64,
    /// Of files in `damaged`.
    pub(crate) damaged_bytes: u64,
    /// Files that could not be removed.
    pub(crate) leftovers: Vec<(PathBuf, u64)>,
}

/// Objects that leave.
pub(crate) type Leaving = Vec<(ObjectId, ObjectEntry)>;

impl StoreState {
    /// Returns the bytes of all files.
    pub(crate) fn n_bytes(&self) -> u64 {
        let leftovers = self.room.leftovers.iter().map(|(_, n_bytes)| n_bytes);
        let outside = self.room.reserved_bytes + self.room.damaged_bytes;
        self.index.n_bytes() + outside + leftovers.sum::<u64>()
    }

    /// Begins another use and returns its number and time. Times only grow, whatever the clock
    /// does, because they keep the order of uses for the next start.
    pub(crate) fn next_use(&mut self, now: Duration) -> (u64, Duration) {
        self.last_use += 1;
        self.last_stamp = now.max(self.last_stamp.saturating_add(Duration::from_micros(1)));
        (self.last_use, self.last_stamp)
    }

    /// Takes the object out of the index; its bytes stay reserved.
    pub(crate) fn take(&mut self, id: &ObjectId, leaving: &mut Leaving) {
        if let Some(entry) = self.index.remove(id) {
            self.room.reserved_bytes += entry.file_bytes;
            leaving.push((*id, entry));
        }
    }
}

impl Shared {
    pub(crate) fn new(folder: PrefixFolder, limits: StoreLimits) -> Self {
        Self { folder, limits, state: Mutex::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a refusal of the system.
    pub(crate) fn count_error(&self, error: Error) -> Error {
        self.state().counts.n_drive_errors += 1;
        error
    }

    /// Takes objects out until `n_bytes` more fit below `n_bytes_max`; reserves these bytes.
    /// Returns `None`, and changes nothing, if all objects that may leave are not enough.
    pub(crate) fn choose_leaving(
        &self,
        state: &mut StoreState,
        n_bytes_max: u64,
        incoming: Option<(PrefixNamespace, u64)>,
    ) -> Option<Leaving> {
        let incoming = incoming.map(|(namespace, n_bytes)| (namespace.owner(), n_bytes));
        let n_incoming = incoming.map_or(0, |(_, n_bytes)| n_bytes);
        let mut leaving = Leaving::new();
        let mut n_freed = 0;
        while (state.n_bytes() - n_freed).saturating_add(n_incoming) > n_bytes_max {
            let n_bytes_max = self.limits.n_bytes_max;
            let need = RoomNeed { n_bytes_max, last_use: state.last_use, incoming };
            let Some(victim) = next_victim(&state.index, need) else {
                Self::put_back(state, leaving);
                return None;
            };
            state.take(&victim, &mut leaving);
            n_freed += leaving.last().map_or(0, |(_, entry)| entry.file_bytes);
        }
        state.room.reserved_bytes += n_incoming;
        Some(leaving)
    }

    /// Enters objects that did not leave.
    pub(crate) fn put_back(state: &mut StoreState, leaving: Leaving) {
        for (id, entry) in leaving {
            state.room.reserved_bytes -= entry.file_bytes;
            state.index.add(id, entry);
        }
    }

    /// Removes the files of objects. What cannot be removed is entered again.
    pub(crate) fn remove_leaving(&self, mut leaving: Leaving) -> Result<()> {
        // From the first that was taken: those after it do not depend on it.
        leaving.reverse();
        while let Some((id, entry)) = leaving.pop() {
            let path = self.folder.object_path(&id);
            if let Err(error) = remove_if_there(&self.folder, &path) {
                leaving.push((id, entry));
                Self::put_back(&mut self.state(), leaving);
                return Err(self.count_error(Error::at("remove", &path)(error)));
            }
            self.state().room.reserved_bytes -= entry.file_bytes;
        }
        Ok(())
    }

    /// Makes room for a file and reserves its bytes: damaged files go first, then objects.
    pub(crate) fn make_room(
        &self,
        namespace: PrefixNamespace,
        n_bytes: u64,
    ) -> std::result::Result<(), WriteRefusal> {
        self.retry_leftovers();
        let n_bytes_max = self.limits.n_bytes_max;
        if self.state().n_bytes().saturating_add(n_bytes) > n_bytes_max {
            self.trim_damaged(0);
        }
        let incoming = Some((namespace, n_bytes));
        let chosen = self.choose_leaving(&mut self.state(), n_bytes_max, incoming);
        let too_large = WriteRefusal::TooLarge { wanted_bytes: n_bytes, n_bytes_max };
        let leaving = chosen.ok_or(too_large)?;
        let n_leaving = leaving.len() as u64;
        let removed = self.remove_leaving(leaving);
        let mut state = self.state();
        if removed.is_err() {
            state.room.reserved_bytes -= n_bytes;
        } else {
            state.counts.n_evicted += n_leaving;
        }
        Ok(removed?)
    }

    /// Tries again to remove what could not be removed.
    pub(crate) fn retry_leftovers(&self) {
        let leftovers = self.state().room.leftovers.clone();
        for (path, n_bytes) in leftovers {
            if remove_if_there(&self.folder, &path).is_ok() {
                let leftovers = &mut self.state().room.leftovers;
                if let Some(at) = leftovers.iter().position(|it| *it == (path.clone(), n_bytes)) {
                    leftovers.remove(at);
                }
            }
        }
    }

    /// Removes all but the newest damaged files.
    pub(crate) fn trim_damaged(&self, n_kept: usize) {
        let kept = self.folder.trim_damaged(n_kept);
        let mut state = self.state();
        match kept {
            Ok(n_bytes) => state.room.damaged_bytes = n_bytes,
            Err(_) => state.counts.n_drive_errors += 1,
        }
    }

    /// Gives an object up: out of the index, and if its file is damaged, out of the way.
    pub(crate) fn give_up(&self, id: &ObjectId, reason: &MissReason) {
        let mut state = self.state();
        state.counts.n_misses += 1;
        let is_writer = state.lock.is_some();
        match reason {
            // The file may be sound.
            MissReason::OtherTokens | MissReason::Drive(_) => {}
            MissReason::Missing => {
                state.index.remove(id);
            }
            MissReason::Damaged(_) => {
                state.counts.n_damaged += 1;
                let n_bytes = state.index.remove(id).map_or(0, |it| it.file_bytes);
                if is_writer {
                    state.room.reserved_bytes += n_bytes;
                    drop(state);
                    self.set_aside(&self.folder.object_path(id), n_bytes);
                }
            }
        }
    }

    /// Moves a file that the index does not have, and whose bytes are reserved, to the damaged
    /// ones.
    pub(crate) fn set_aside(&self, path: &Path, n_bytes: u64) {
        let moved = self.folder.set_aside(path);
        let mut state = self.state();
        state.room.reserved_bytes -= n_bytes;
        if moved.is_err() {
            state.counts.n_drive_errors += 1;
            state.room.leftovers.push((path.to_owned(), n_bytes));
            return;
        }
        state.room.damaged_bytes += n_bytes;
        drop(state);
        self.trim_damaged(N_DAMAGED_KEPT);
    }
}

/// Removes a file, unless it is gone.
pub(crate) fn remove_if_there(folder: &PrefixFolder, path: &Path) -> io::Result<()> {
    match folder.files.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
