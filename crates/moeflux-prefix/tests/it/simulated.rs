//! A file system in memory that keeps what was synced apart from what was not.
//!
//! Each process has its own [`SimFiles`]. A process is killed, or all power is lost, after a given
//! number of calls that change something; its later calls fail. What a loss of power leaves is
//! decided by a seed: of each unsynced entry of a folder and of each unsynced file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use moeflux_prefix::{Files, FolderEntry, HeldLock, NewFile, OpenedFile, WallClock};
use moeflux_testing::random::Rng;

/// What happens to calls that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The drive has no room: removing works.
    Full,
    /// Nothing can be changed.
    ReadOnly,
    /// One call fails.
    Once,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Kill(u32),
    Power(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    File(usize),
    Folder,
}

#[derive(Debug, Default)]
struct SimFolder {
    live: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    pending: Vec<(String, Option<Node>)>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    modified: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Drive {
    folders: BTreeMap<PathBuf, SimFolder>,
    inodes: Vec<Inode>,
    locks: HashMap<PathBuf, u32>,
    dead: HashSet<u32>,
    n_processes: u32,
    n_random: u64,
    /// After how many calls, and what then.
    pub(crate) stop: Option<(usize, Stop)>,
    pub(crate) fault: Option<(usize, Fault)>,
    /// After how many reads one fails.
    pub(crate) failing_read: Option<usize>,
    /// Whether a fault was met since this was cleared.
    pub(crate) has_failed: bool,
}

/// The drive, shared by all processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDrive(Arc<Mutex<Drive>>);

/// The drive as one process sees it.
#[derive(Clone, Debug)]
pub(crate) struct SimFiles {
    drive: SimDrive,
    pub(crate) process: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SimClock(Arc<AtomicU64>);

impl SimClock {
    pub(crate) fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl WallClock for SimClock {
    fn since_1970(&self) -> Duration {
        Duration::from_secs(self.seconds())
    }
}

fn split(path: &Path) -> (PathBuf, String) {
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    (path.parent().unwrap().to_owned(), name)
}

fn no_power() -> io::Error {
    io::Error::other("the process has ended")
}

impl SimDrive {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Drive> {
        self.0.lock().unwrap()
    }

    pub(crate) fn process(&self) -> SimFiles {
        let mut drive = self.lock();
        drive.n_processes += 1;
        SimFiles { drive: self.clone(), process: drive.n_processes }
    }
}

impl Drive {
    pub(crate) fn n_processes(&self) -> u32 {
        self.n_processes
    }

    pub(crate) fn is_dead(&self, process: u32) -> bool {
        self.dead.contains(&process)
    }

    pub(crate) fn kill(&mut self, process: u32) {
        self.dead.insert(process);
        self.locks.retain(|_, holder| *holder != process);
    }

    /// All that was not synced may be lost.
    pub(crate) fn lose_power(&mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        for folder in self.folders.values_mut() {
            for (name, node) in std::mem::take(&mut folder.pending) {
                if rng.coin() {
                    enter(&mut folder.durable, name, node);
                }
            }
            folder.live = folder.durable.clone();
        }
        let root = PathBuf::from("/");
        let mut kept = HashSet::from([root.clone()]);
        let paths: Vec<PathBuf> = self.folders.keys().cloned().collect();
        for path in paths.iter().filter(|it| **it != root) {
            let (parent, name) = split(path);
            let entry = self.folders.get(&parent).and_then(|it| it.live.get(&name));
            if kept.contains(&parent) && entry == Some(&Node::Folder) {
                kept.insert(path.clone());
            }
        }
        self.folders.retain(|path, _| kept.contains(path));
        for inode in &mut self.inodes {
            if inode.live != inode.durable {
                match rng.below(3) {
                    0 => inode.live = inode.durable.clone(),
                    1 => {}
                    _ => {
                        let n_kept = rng.below(inode.live.len() + 1);
                        let n_lost = inode.live.len() - n_kept;
                        inode.live.truncate(n_kept);
                        let n_garbage = rng.below(n_lost + 1);
                        inode.live.extend(rng.bytes(n_garbage));
                    }
                }
                inode.durable = inode.live.clone();
            }
        }
        (1..=self.n_processes).for_each(|process| self.kill(process));
    }

    /// All files below a folder, with their contents.
    pub(crate) fn files_below(&self, folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let below = self.folders.range(folder.to_owned()..);
        let below = below.take_while(|(path, _)| path.starts_with(folder));
        let files = below.flat_map(|(path, it)| it.live.iter().map(move |it| (path, it)));
        let files = files.filter_map(|(path, (name, node))| match node {
            Node::File(inode) => Some((path.join(name), self.inodes[*inode].live.clone())),
            Node::Folder => None,
        });
        files.collect()
    }

    /// Changes a bit of a file, on the drive too.
    pub(crate) fn flip(&mut self, path: &Path, bit: usize) {
        let inode = self.inode(path).unwrap();
        self.inodes[inode].live[bit / 8] ^= 1 << (bit % 8);
        self.inodes[inode].durable = self.inodes[inode].live.clone();
    }

    pub(crate) fn cut(&mut self, path: &Path, n_bytes: usize) {
        let inode = self.inode(path).unwrap();
        self.inodes[inode].live.truncate(n_bytes);
        self.inodes[inode].durable = self.inodes[inode].live.clone();
    }

    fn inode(&self, path: &Path) -> io::Result<usize> {
        let (folder, name) = split(path);
        match self.folders.get(&folder).and_then(|it| it.live.get(&name)) {
            Some(Node::File(inode)) => Ok(*inode),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, path: &Path, node: Option<Node>) -> io::Result<()> {
        let (folder, name) = split(path);
        let folder = self.folders.get_mut(&folder).ok_or(io::ErrorKind::NotFound)?;
        enter(&mut folder.live, name.clone(), node);
        folder.pending.push((name, node));
        Ok(())
    }

    /// Before a call that changes something.
    fn before(&mut self, process: u32, is_removal: bool) -> io::Result<()> {
        if self.is_dead(process) {
            return Err(no_power());
        }
        let Some((n_calls, fault)) = &mut self.fault else { return Ok(()) };
        if *n_calls > 0 {
            *n_calls -= 1;
            return Ok(());
        }
        let kind = match *fault {
            Fault::Full if is_removal => return Ok(()),
            Fault::Full => io::ErrorKind::StorageFull,
            Fault::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            Fault::Once => io::ErrorKind::Other,
        };
        if *fault == Fault::Once {
            self.fault = None;
        }
        self.has_failed = true;
        Err(kind.into())
    }

    /// After such a call.
    fn after(&mut self) {
        match &mut self.stop {
            Some((n_calls, _)) if *n_calls > 0 => *n_calls -= 1,
            Some((_, stop)) => {
                match *stop {
                    Stop::Kill(process) => self.kill(process),
                    Stop::Power(seed) => self.lose_power(seed),
                }
                self.stop = None;
            }
            None => {}
        }
    }
}

fn enter(entries: &mut BTreeMap<String, Node>, name: String, node: Option<Node>) {
    match node {
        Some(node) => drop(entries.insert(name, node)),
        None => drop(entries.remove(&name)),
    }
}

impl SimFiles {
    /// Runs a call that changes something.
    fn changing(
        &self,
        is_removal: bool,
        act: impl FnOnce(&mut Drive) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut drive = self.drive.lock();
        drive.before(self.process, is_removal)?;
        let done = act(&mut drive);
        drive.after();
        done
    }

    fn looking(&self) -> io::Result<MutexGuard<'_, Drive>> {
        let drive = self.drive.lock();
        if drive.is_dead(self.process) { Err(no_power()) } else { Ok(drive) }
    }
}

impl Files for SimFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = {
            let drive = self.looking()?;
            let all = path.ancestors().filter(|it| it.parent().is_some());
            all.filter(|it| !drive.folders.contains_key(*it)).collect()
        };
        for folder in missing.into_iter().rev() {
            self.changing(false, |drive| {
                drive.folders.entry(PathBuf::from("/")).or_default();
                drive.change(folder, Some(Node::Folder))?;
                drive.folders.insert(folder.to_owned(), SimFolder::default());
                Ok(())
            })?;
        }
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        let drive = self.looking()?;
        let entries = &drive.folders.get(folder).ok_or(io::ErrorKind::NotFound)?.live;
        let entry = |(name, node): (&String, &Node)| {
            let (n_bytes, modified) = match node {
                Node::File(inode) => {
                    (drive.inodes[*inode].live.len() as u64, drive.inodes[*inode].modified)
                }
                Node::Folder => (0, Duration::ZERO),
            };
            let is_folder = *node == Node::Folder;
            FolderEntry { name: name.clone(), n_bytes, modified, is_folder }
        };
        Ok(entries.iter().map(entry).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenedFile>> {
        let inode = self.looking()?.inode(path)?;
        let len_bytes = self.drive.lock().inodes[inode].live.len() as u64;
        Ok(Box::new(SimOpened { files: self.clone(), inode, len_bytes, loaded: Vec::new() }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let mut inode = 0;
        self.changing(false, |drive| {
            if drive.inode(path).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            inode = drive.inodes.len();
            drive.inodes.push(Inode::default());
            drive.change(path, Some(Node::File(inode)))
        })?;
        Ok(Box::new(SimNew { files: self.clone(), inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.changing(false, |drive| {
            let inode = drive.inode(from)?;
            drive.change(to, Some(Node::File(inode)))?;
            drive.change(from, None)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.changing(true, |drive| {
            drive.inode(path)?;
            drive.change(path, None)
        })
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.changing(false, |drive| {
            let folder = drive.folders.get_mut(folder).ok_or(io::ErrorKind::NotFound)?;
            folder.pending.clear();
            folder.durable = folder.live.clone();
            Ok(())
        })
    }

    fn set_modified(&self, path: &Path, time: Duration) -> io::Result<()> {
        self.changing(false, |drive| {
            let inode = drive.inode(path)?;
            drive.inodes[inode].modified = time;
            Ok(())
        })
    }

    fn free_bytes(&self, _: &Path) -> Option<u64> {
        None
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn HeldLock>>> {
        let mut drive = self.looking()?;
        if drive.locks.contains_key(path) {
            return Ok(None);
        }
        drive.locks.insert(path.to_owned(), self.process);
        let lock = SimLock { files: self.clone(), path: path.to_owned() };
        Ok(Some(Box::new(lock)))
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut drive = self.looking()?;
        drive.n_random += 1;
        bytes.copy_from_slice(&Rng::new(drive.n_random).bytes(bytes.len()));
        Ok(())
    }
}

#[derive(Debug)]
struct SimLock {
    files: SimFiles,
    path: PathBuf,
}

impl HeldLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut drive = self.files.drive.lock();
        if drive.locks.get(&self.path) == Some(&self.files.process) {
            drive.locks.remove(&self.path);
        }
    }
}

#[derive(Debug)]
struct SimOpened {
    files: SimFiles,
    inode: usize,
    len_bytes: u64,
    loaded: Vec<u8>,
}

impl OpenedFile for SimOpened {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn load(&mut self, offset_bytes: u64, n_bytes: usize) -> io::Result<()> {
        self.loaded.clear();
        let mut drive = self.files.looking()?;
        match &mut drive.failing_read {
            Some(0) => {
                drive.failing_read = None;
                drive.has_failed = true;
                return Err(io::ErrorKind::Other.into());
            }
            Some(n_reads) => *n_reads -= 1,
            None => {}
        }
        let start = usize::try_from(offset_bytes).unwrap();
        let bytes = drive.inodes[self.inode].live.get(start..start + n_bytes);
        self.loaded.extend(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn loaded(&self) -> &[u8] {
        &self.loaded
    }
}

#[derive(Debug)]
struct SimNew {
    files: SimFiles,
    inode: usize,
}

impl Write for SimNew {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let inode = self.inode;
        self.files.changing(false, |drive| {
            drive.inodes[inode].live.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for SimNew {
    fn sync(&mut self) -> io::Result<()> {
        let inode = self.inode;
        self.files.changing(false, |drive| {
            drive.inodes[inode].durable = drive.inodes[inode].live.clone();
            Ok(())
        })
    }
}
