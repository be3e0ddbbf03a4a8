//! The folder of a store: its paths, its small files, and the files of objects as they are found.
//!
//! ```text
//! CACHEDIR.TAG                  keeps the folder out of backups
//! lock                          locked by the process that writes
//! secret                        from which the owners of keys are made
//! written                       bytes written on a day
//! model-HASH                    name of a model, for lists
//! objects/HH/END-START.KIND     objects; HH are the first digits of END
//! tmp/N.part, tmp/NAME-N.part   files that are being written
//! damaged/N-NAME                the latest damaged files
//! ```
//!
//! **Invariant:** a file under its final name was complete on the drive before it got this name.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, MissReason, ObjectDamage, Result};
use crate::files::real::MachineFiles;
use crate::files::{Files, OpenedFile, WallClock};
use crate::header::{ObjectHeader, PAYLOAD_ALIGN};
use crate::key::{ObjectId, SECRET_BYTES};
use crate::names::ModelName;

/// Damaged files that are kept for who wants to look at them.
pub const N_DAMAGED_KEPT: usize = 8;

const PART: &str = ".part";
/// What identifies a model of a thousand layers fits.
const SMALL_BYTES_MAX: u64 = 1 << 16;
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file is a cache directory tag created by moeflux.\n\
    # For information about cache directory tags, see: https://bford.info/cachedir/\n";

/// A folder with the means to use it.
#[derive(Clone, Debug)]
pub struct PrefixFolder {
    root: PathBuf,
    pub(crate) files: Arc<dyn Files>,
    clock: Arc<dyn WallClock>,
}

/// A file in `objects`.
#[derive(Debug)]
pub(crate) struct FoundFile {
    pub(crate) id: ObjectId,
    pub(crate) path: PathBuf,
    pub(crate) n_bytes: u64,
    pub(crate) modified: Duration,
}

/// An object that was opened, with a sound header.
#[derive(Debug)]
pub(crate) struct OpenedObject {
    pub(crate) header: ObjectHeader,
    pub(crate) file: Box<dyn OpenedFile>,
}

impl PrefixFolder {
    /// Names a folder of this machine. It need not exist.
    #[must_use]
    pub fn new(root: PathBuf, clock: Arc<dyn WallClock>) -> Self {
        Self::with_files(root, Arc::new(MachineFiles), clock)
    }

    /// Names a folder of any file system.
    #[must_use]
    pub fn with_files(root: PathBuf, files: Arc<dyn Files>, clock: Arc<dyn WallClock>) -> Self {
        Self { root, files, clock }
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Returns whether a store was ever opened in it.
    ///
    /// # Errors
    ///
    /// The system does not say whether it is there.
    pub fn is_there(&self) -> Result<bool> {
        let objects = self.objects();
        match self.files.list(&objects) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            listed => listed.map(|_| true).map_err(Error::at("list", &objects)),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.since_1970()
    }

    pub(crate) fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(crate) fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }

    pub(crate) fn part_path(&self, number: u64) -> PathBuf {
        self.tmp().join(format!("{number}{PART}"))
    }

    pub(crate) fn object_path(&self, id: &ObjectId) -> PathBuf {
        self.objects().join(format!("{:02x}", id.end.0[0])).join(id.file_name())
    }

    /// Makes the folders.
    pub(crate) fn make(&self) -> Result<()> {
        for folder in [self.root.clone(), self.objects(), self.tmp(), self.damaged()] {
            self.files.make_folder(&folder).map_err(Error::at("create", &folder))?;
        }
        // Its parent may be one that this user cannot open.
        drop(self.root.parent().map(|it| self.files.sync_folder(it)));
        let synced = self.files.sync_folder(&self.root);
        synced.map_err(Error::at("sync", &self.root))
    }

    /// Writes the tag for backup programs, unless it is there.
    pub(crate) fn put_tag(&self) -> Result<()> {
        match self.read_small("CACHEDIR.TAG")? {
            Some(bytes) if bytes == TAG.as_bytes() => Ok(()),
            _ => self.write_small("CACHEDIR.TAG", 0, TAG.as_bytes()),
        }
    }

    /// Returns the secret, or makes one: also in place of one that was cut.
    pub(crate) fn make_secret(&self) -> Result<[u8; SECRET_BYTES]> {
        if let Some(secret) = self.read_secret()? {
            return Ok(secret);
        }
        let mut secret = [0; SECRET_BYTES];
        let made = self.files.random(&mut secret);
        made.map_err(Error::at("make random numbers for", &self.root))?;
        self.write_small("secret", 0, &secret)?;
        Ok(secret)
    }

    /// Returns the secret if there is one.
    pub(crate) fn read_secret(&self) -> Result<Option<[u8; SECRET_BYTES]>> {
        let bytes = self.read_small("secret")?;
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
    }

    /// Returns the names of models. Files that cannot be read are left out.
    pub(crate) fn model_names(&self) -> Result<Vec<ModelName>> {
        let entries = self.files.list(&self.root).map_err(Error::at("list", &self.root))?;
        let named = entries.into_iter().filter(|it| !it.is_folder && ModelName::may_be(&it.name));
        let read = |name: &str| ModelName::parse(name, &self.read_small(name).ok()??);
        Ok(named.filter_map(|it| read(&it.name)).collect())
    }

    /// Reads a small file; `None` if it is not there, or is not small.
    pub(crate) fn read_small(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.root.join(name);
        let mut file = match self.files.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::at("open", &path))?,
        };
        let n_bytes = file.len_bytes();
        if n_bytes == 0 || n_bytes > SMALL_BYTES_MAX {
            return Ok(None);
        }
        let n_bytes = usize::try_from(n_bytes).unwrap_or(0);
        file.load(0, n_bytes).map_err(Error::at("read", &path))?;
        Ok(Some(file.loaded().to_vec()))
    }

    /// Writes a small file, in place of an old one. Threads that write one at a time give different
    /// numbers.
    pub(crate) fn write_small(&self, name: &str, number: u64, bytes: &[u8]) -> Result<()> {
        let part = self.tmp().join(format!("{name}-{number}{PART}"));
        let path = self.root.join(name);
        // What an earlier process left would be in the way.
        drop(self.files.remove(&part));
        let mut file = self.files.create(&part).map_err(Error::at("create", &part))?;
        let written = file.write_all(bytes).and_then(|()| file.sync());
        drop(file);
        let renamed = written.and_then(|()| self.files.rename(&part, &path));
        if renamed.is_err() {
            drop(self.files.remove(&part));
        }
        renamed.and_then(|()| self.files.sync_folder(&self.root)).map_err(Error::at("write", &path))
    }

    /// Returns the files that a writer which ended left in `tmp`.
    pub(crate) fn leftovers(&self) -> Result<Vec<(PathBuf, u64)>> {
        let tmp = self.tmp();
        let entries = self.files.list(&tmp).map_err(Error::at("list", &tmp))?;
        let parts = entries.into_iter().filter(|it| !it.is_folder && it.name.ends_with(PART));
        Ok(parts.map(|it| (tmp.join(it.name), it.n_bytes)).collect())
    }

    /// Lists the files of objects.
    pub(crate) fn list_objects(&self) -> Result<Vec<FoundFile>> {
        let objects = self.objects();
        let folders = self.files.list(&objects).map_err(Error::at("list", &objects))?;
        let mut found = Vec::new();
        for folder in folders.into_iter().filter(|it| it.is_folder && it.name.len() == 2) {
            let folder = objects.join(folder.name);
            for entry in self.files.list(&folder).map_err(Error::at("list", &folder))? {
                let id = ObjectId::of_file_name(&entry.name).filter(|_| !entry.is_folder);
                let Some(id) = id else { continue };
                let path = folder.join(entry.name);
                let (n_bytes, modified) = (entry.n_bytes, entry.modified);
                found.push(FoundFile { id, path, n_bytes, modified });
            }
        }
        Ok(found)
    }

    /// Opens an object and reads its header.
    pub(crate) fn open_object(
        &self,
        id: &ObjectId,
        path: &Path,
    ) -> std::result::Result<OpenedObject, MissReason> {
        let mut file = self.files.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MissReason::Missing,
            _ => MissReason::Drive(error),
        })?;
        let file_bytes = file.len_bytes();
        if file_bytes < PAYLOAD_ALIGN as u64 {
            return Err(ObjectDamage::Length(file_bytes).into());
        }
        let unreadable = |_| ObjectDamage::Unreadable;
        // All of most headers.
        file.load(0, PAYLOAD_ALIGN).map_err(unreadable)?;
        let n_bytes = ObjectHeader::len_bytes(file.loaded(), file_bytes)?;
        if n_bytes > PAYLOAD_ALIGN {
            file.load(0, n_bytes).map_err(unreadable)?;
        }
        let header = ObjectHeader::parse(file.loaded(), file_bytes)?;
        if header.id != *id || self.object_path(id) != path {
            return Err(ObjectDamage::OtherObject.into());
        }
        Ok(OpenedObject { header, file })
    }

    /// Moves a damaged file to the others, or removes it.
    pub(crate) fn set_aside(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        let number = self.list_damaged()?.last().map_or(0, |(number, ..)| number.saturating_add(1));
        let aside = self.damaged().join(format!("{number}-{name}"));
        match self.files.rename(path, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.files.remove(path),
            _ => Ok(()),
        }
    }

    /// Removes all but the newest `n_kept` damaged files, and returns how many bytes these have.
    pub(crate) fn trim_damaged(&self, n_kept: usize) -> io::Result<u64> {
        let mut damaged = self.list_damaged()?;
        let n_removed = damaged.len().saturating_sub(n_kept);
        for (_, path, _) in damaged.drain(..n_removed) {
            self.files.remove(&path)?;
        }
        Ok(damaged.iter().map(|(.., n_bytes)| n_bytes).sum())
    }

    /// Lists the damaged files, oldest first.
    fn list_damaged(&self) -> io::Result<Vec<(u64, PathBuf, u64)>> {
        let folder = self.damaged();
        let entries = self.files.list(&folder)?.into_iter().filter(|it| !it.is_folder);
        let mut found: Vec<(u64, PathBuf, u64)> = entries
            .filter_map(|entry| {
                let number = entry.name.split_once('-')?.0.parse().ok()?;
                Some((number, folder.join(entry.name), entry.n_bytes))
            })
            .collect();
        found.sort();
        Ok(found)
    }
}
