//! The store: opens a folder, finds, reads and writes objects, and removes them on request.
//!
//! **Invariant:** one process writes to a folder, whichever has its lock; others read, and see what
//! the writer made after [`Store::refresh`]. No call waits for another process.

use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::DayBudget;
use crate::error::{Error, Miss, MissReason, ObjectDamage, Result, WriteRefusal};
use crate::folder::{FoundFile, N_DAMAGED_KEPT, PrefixFolder};
use crate::index::{FoundPrefix, Holding, ObjectEntry, StateNeed};
use crate::key::{ObjectId, OwnerId, PrefixNamespace};
use crate::names::ModelName;
use crate::reader::ObjectReader;
use crate::shared::{Leaving, Shared, StoreCounts, StoreLimits};
use crate::writer::{NewObject, ObjectWriter};

/// Whether a process may change a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRole {
    /// It has the lock.
    Writer,
    /// Another process has the lock, or the folder cannot be written.
    Reader,
}

/// An object, for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectFacts {
    /// Its name.
    pub id: ObjectId,
    /// Where it may be used.
    pub namespace: PrefixNamespace,
    /// First position.
    pub first: u64,
    /// Position after the last.
    pub end: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// What computing it again would cost, in ms.
    pub saved_ms: u64,
    /// When it was last used, since 1970.
    pub last_used: Duration,
}

/// Which objects to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneRule {
    /// All, damaged files too.
    All,
    /// Those that were not used for this long, unless newer ones depend on them.
    UnusedFor(Duration),
    /// Those of least worth, until no more than these bytes are left.
    ToBytes(u64),
}

/// What a check of all objects found.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Objects that can be used.
    pub n_sound: usize,
    /// Bytes that were read of these.
    pub n_bytes: u64,
    /// Those that cannot. The writer has set their files aside.
    pub misses: Vec<Miss>,
}

/// A file whose header is damaged.
struct DamagedFile {
    file: FoundFile,
    damage: ObjectDamage,
}

/// A folder of objects.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

impl Store {
    /// Opens a folder, as its writer if no other process is. A folder that cannot be written is
    /// read: [`Store::try_take_over`] then says why.
    ///
    /// # Errors
    ///
    /// The folder can neither be made nor listed.
    pub fn open(folder: PrefixFolder, limits: StoreLimits) -> Result<Self> {
        let store = Self { shared: Arc::new(Shared::new(folder, limits)) };
        let taken = store.try_take_over();
        if let Err(unlisted) = store.refresh() {
            // What kept it from being made says more.
            return Err(taken.err().unwrap_or(unlisted));
        }
        Ok(store)
    }

    /// Opens a folder that is there without changing anything in it.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub fn open_to_read(folder: PrefixFolder) -> Result<Self> {
        let limits = StoreLimits { n_bytes_max: u64::MAX, write_bytes_per_day: 0 };
        let store = Self { shared: Arc::new(Shared::new(folder, limits)) };
        store.scan()?;
        Ok(store)
    }

    /// Returns whether this process may write.
    #[must_use]
    pub fn role(&self) -> StoreRole {
        match self.shared.state().lock {
            Some(_) => StoreRole::Writer,
            None => StoreRole::Reader,
        }
    }

    /// Becomes the writer if there is none.
    ///
    /// # Errors
    ///
    /// The folder cannot be written or listed. It is read as before.
    pub fn try_take_over(&self) -> Result<StoreRole> {
        if self.role() == StoreRole::Writer {
            return Ok(StoreRole::Writer);
        }
        let folder = &self.shared.folder;
        folder.make()?;
        let path = folder.lock_path();
        let Some(lock) = folder.files.try_lock(&path).map_err(Error::at("lock", &path))? else {
            return Ok(StoreRole::Reader);
        };
        let secret = folder.make_secret()?;
        folder.put_tag()?;
        let leftovers = folder.leftovers()?;
        let damaged = self.scan()?;
        let day = folder.read_small("written")?.unwrap_or_default();
        let mut state = self.shared.state();
        state.secret = Some(secret);
        state.day = DayBudget::parse(&day);
        state.room.leftovers = leftovers;
        state.lock = Some(lock);
        drop(state);
        self.shared.retry_leftovers();
        for DamagedFile { file, .. } in damaged {
            let mut state = self.shared.state();
            state.room.reserved_bytes += file.n_bytes;
            state.counts.n_damaged += 1;
            drop(state);
            self.shared.set_aside(&file.path, file.n_bytes);
        }
        self.shared.trim_damaged(N_DAMAGED_KEPT);
        // The limit may be lower than last time; a power failure brings removed files back.
        if self.shared.state().n_bytes() > self.shared.limits.n_bytes_max {
            self.shared.trim_damaged(0);
        }
        // A file that cannot be removed now is tried again by the next write.
        drop(self.remove_to(self.shared.limits.n_bytes_max));
        self.remove_unused_names();
        Ok(StoreRole::Writer)
    }

    /// Looks what the writer has made and removed. Does nothing if that is this process.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub fn refresh(&self) -> Result<()> {
        if self.role() == StoreRole::Reader {
            self.scan()?;
        }
        Ok(())
    }

    /// Looks what is there, and returns the files whose headers are damaged: no list has these. The
    /// writer has set them aside when it began.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub fn damaged_headers(&self) -> Result<Vec<Miss>> {
        let damaged = match self.role() {
            StoreRole::Writer => Vec::new(),
            StoreRole::Reader => self.scan()?,
        };
        let miss = |it: DamagedFile| Miss { id: it.file.id, reason: it.damage.into() };
        Ok(damaged.into_iter().map(miss).collect())
    }

    /// Returns the owner of what is asked with a key, by the name of the key.
    ///
    /// # Errors
    ///
    /// The folder has no secret yet, because its writer just begins, or it cannot be read.
    pub fn owner(&self, key_name: &str) -> Result<OwnerId> {
        let known = self.shared.state().secret;
        let secret = match known {
            Some(secret) => secret,
            None => self.shared.folder.read_secret()?.ok_or_else(|| {
                let path = self.shared.folder.path().join("secret");
                Error::at("read", &path)(io::ErrorKind::NotFound.into())
            })?,
        };
        self.shared.state().secret = Some(secret);
        Ok(OwnerId::of(&secret, key_name))
    }

    /// Finds the longest prefix of `tokens`, which may be all of them.
    #[must_use]
    pub fn find(&self, namespace: PrefixNamespace, tokens: &[u32], need: StateNeed) -> FoundPrefix {
        self.shared.state().index.find(namespace, tokens, need)
    }

    /// Records that a prefix was of use. This keeps it longer than others.
    pub fn mark_used(&self, found: &FoundPrefix) {
        let ids: Vec<ObjectId> = found.segments.iter().copied().chain(found.state).collect();
        self.mark_all_used(&ids);
    }

    /// Does the same for some objects.
    pub fn mark_all_used(&self, ids: &[ObjectId]) {
        let now = self.shared.folder.now();
        let mut state = self.shared.state();
        let (last_use, stamp) = state.next_use(now);
        for id in ids {
            if let Some(entry) = state.index.get_mut(id) {
                (entry.last_use, entry.modified) = (last_use, stamp);
            }
        }
        drop(state);
        for id in ids {
            // For the next start. Without it, the order of uses is only less exact.
            let path = self.shared.folder.object_path(id);
            drop(self.shared.folder.files.set_modified(&path, stamp));
        }
    }

    /// Opens an object that was found for a text that begins with `tokens`.
    ///
    /// # Errors
    ///
    /// A miss: the tokens must be computed again.
    pub fn read(&self, id: ObjectId, tokens: &[u32]) -> std::result::Result<ObjectReader, Miss> {
        ObjectReader::open(&self.shared, id, tokens)
    }

    /// Opens an object of a list, whatever the tokens before it are.
    ///
    /// # Errors
    ///
    /// As [`Store::read`].
    pub fn read_listed(&self, id: ObjectId) -> std::result::Result<ObjectReader, Miss> {
        ObjectReader::open_any(&self.shared, id)
    }

    /// Begins an object, for which others may leave.
    ///
    /// # Errors
    ///
    /// Why the object is not written. No error needs to be handled, except by a warning.
    pub fn begin(&self, object: &NewObject<'_>) -> std::result::Result<ObjectWriter, WriteRefusal> {
        ObjectWriter::begin(&self.shared, object)
    }

    /// Returns what the store did, and what it has.
    #[must_use]
    pub fn counts(&self) -> StoreCounts {
        let now = self.shared.folder.now();
        let state = self.shared.state();
        let (n_objects, n_bytes) = (state.index.len(), state.n_bytes());
        let written_today_bytes = state.day.at(now).written_bytes();
        let StoreLimits { n_bytes_max, write_bytes_per_day } = self.shared.limits;
        StoreCounts {
            n_objects,
            n_bytes,
            n_bytes_max,
            written_today_bytes,
            write_bytes_per_day,
            ..state.counts
        }
    }

    /// Returns what the folder has for a namespace, or for its owner.
    #[must_use]
    pub fn holding(&self, namespace: PrefixNamespace) -> Holding {
        self.shared.state().index.holding(namespace)
    }

    /// Lists all objects.
    #[must_use]
    pub fn list(&self) -> Vec<ObjectFacts> {
        let facts = |(id, entry): (&ObjectId, &ObjectEntry)| ObjectFacts {
            id: *id,
            namespace: entry.namespace,
            first: entry.first,
            end: entry.end,
            file_bytes: entry.file_bytes,
            saved_ms: entry.saved_ms,
            last_used: entry.modified,
        };
        self.shared.state().index.iter().map(facts).collect()
    }

    /// Reads all objects and compares their checksums.
    #[must_use]
    pub fn verify(&self) -> VerifyReport {
        let mut report = VerifyReport::default();
        for object in self.list() {
            match self.verify_object(object.id) {
                Ok(n_bytes) => {
                    report.n_sound += 1;
                    report.n_bytes += n_bytes;
                }
                Err(miss) => report.misses.push(miss),
            }
        }
        report
    }

    fn verify_object(&self, id: ObjectId) -> std::result::Result<u64, Miss> {
        let mut reader = ObjectReader::open_any(&self.shared, id)?;
        io::copy(&mut reader.by_ref(), &mut io::sink()).map_err(|error| {
            let other = |error| Miss { id, reason: MissReason::Drive(error) };
            error.downcast::<Miss>().unwrap_or_else(other)
        })
    }

    /// Removes objects, and returns how many.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::NotTheWriter`], or the system's. What could not be removed is still there.
    pub fn prune(&self, rule: PruneRule) -> std::result::Result<usize, WriteRefusal> {
        if self.role() == StoreRole::Reader {
            return Err(WriteRefusal::NotTheWriter);
        }
        self.shared.retry_leftovers();
        let n_before = self.shared.state().index.len();
        match rule {
            PruneRule::All => {
                self.shared.trim_damaged(0);
                self.remove_while(|_| true)?;
            }
            PruneRule::UnusedFor(time) => {
                let now = self.shared.folder.now();
                self.remove_while(|entry| now.saturating_sub(entry.modified) >= time)?;
            }
            PruneRule::ToBytes(n_bytes_max) => {
                self.shared.trim_damaged(0);
                self.remove_to(n_bytes_max)?;
            }
        }
        self.remove_unused_names();
        Ok(n_before.saturating_sub(self.shared.state().index.len()))
    }

    /// Records the name of a model for lists, if this is the writer. `identity` is that of its
    /// namespaces.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn name_model(&self, identity: &[u8], name: &str) -> Result<()> {
        let named = ModelName::new(identity, name);
        let (file, bytes) = (named.file_name(), named.to_bytes());
        let folder = &self.shared.folder;
        if self.role() == StoreRole::Reader || folder.read_small(&file)?.as_ref() == Some(&bytes) {
            return Ok(());
        }
        folder.write_small(&file, 0, &bytes)
    }

    /// Returns the names of models.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub fn model_names(&self) -> Result<Vec<ModelName>> {
        self.shared.folder.model_names()
    }

    /// Removes the names of models that have no object. A failure leaves a name.
    fn remove_unused_names(&self) {
        let folder = &self.shared.folder;
        for named in folder.model_names().unwrap_or_default() {
            let state = self.shared.state();
            let is_used = state.index.iter().any(|(_, entry)| named.is_of(entry.namespace));
            drop(state);
            if !is_used {
                drop(folder.files.remove(&folder.path().join(named.file_name())));
            }
        }
    }

    /// Removes objects on which none depends, while there are any that `may_go`.
    fn remove_while(&self, may_go: impl Fn(&ObjectEntry) -> bool) -> Result<()> {
        let mut leaving = Leaving::new();
        let mut state = self.shared.state();
        loop {
            let leaves = state.index.leaves().filter(|(_, entry)| may_go(entry));
            let ids: Vec<ObjectId> = leaves.map(|(id, _)| *id).collect();
            if ids.is_empty() {
                break;
            }
            ids.iter().for_each(|id| state.take(id, &mut leaving));
        }
        drop(state);
        self.shared.remove_leaving(leaving)
    }

    /// Removes the objects of least worth until `n_bytes_max` are left, or none may go.
    fn remove_to(&self, n_bytes_max: u64) -> Result<()> {
        let chosen = self.shared.choose_leaving(&mut self.shared.state(), n_bytes_max, None);
        match chosen {
            Some(leaving) => self.shared.remove_leaving(leaving),
            None => self.remove_while(|_| true),
        }
    }

    /// Reads the headers of new files and forgets files that are gone. Returns the damaged ones.
    fn scan(&self) -> Result<Vec<DamagedFile>> {
        let folder = &self.shared.folder;
        let mut found = folder.list_objects()?;
        // Files that were used together have the same time.
        found.sort_by_key(|it| (it.modified, it.id));
        let mut damaged = Vec::new();
        let mut entries = Vec::new();
        let (mut last_use, mut last_time) = (0, Duration::ZERO);
        for file in found {
            let known = self.shared.state().index.get(&file.id).copied();
            let known = known.filter(|it| it.file_bytes == file.n_bytes);
            let entry = match known.map_or_else(|| self.look_at(&file), Ok) {
                Ok(entry) => entry,
                Err(MissReason::Drive(error)) => return Err(Error::at("open", &file.path)(error)),
                Err(MissReason::Damaged(damage)) => {
                    damaged.push(DamagedFile { file, damage });
                    continue;
                }
                Err(MissReason::Missing | MissReason::OtherTokens) => continue,
            };
            last_use += u64::from(file.modified != last_time);
            last_time = file.modified;
            entries.push((file.id, ObjectEntry { modified: file.modified, last_use, ..entry }));
        }
        let mut state = self.shared.state();
        let before: Vec<ObjectId> = state.index.iter().map(|(id, _)| *id).collect();
        for id in before {
            state.index.remove(&id);
        }
        entries.into_iter().for_each(|(id, entry)| state.index.add(id, entry));
        state.last_use = last_use;
        state.last_stamp = last_time;
        Ok(damaged)
    }

    /// Reads the header of a file.
    fn look_at(&self, file: &FoundFile) -> std::result::Result<ObjectEntry, MissReason> {
        let header = self.shared.folder.open_object(&file.id, &file.path)?.header;
        Ok(ObjectEntry {
            namespace: header.namespace,
            first: header.first,
            end: header.end,
            file_bytes: file.n_bytes,
            saved_ms: header.saved_ms,
            modified: file.modified,
            last_use: 0,
        })
    }
}
