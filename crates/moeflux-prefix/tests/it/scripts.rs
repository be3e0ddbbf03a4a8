//! Random scripts on a simulated drive: two processes, faults, kills and losses of power.
//!
//! Whatever happens, no read gives a wrong byte, the folder stays within its bound, and what was
//! committed stays until it leaves for another or is damaged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_prefix::{
    Files as _, FoundPrefix, N_DAMAGED_KEPT, ObjectId, OwnerId, PrefixFolder, PrefixNamespace,
    PruneRule, StateNeed, Store, StoreLimits, StoreRole, WriteRefusal,
};
use moeflux_testing::random::{Rng, seeds};

use crate::model::{ModelObject, check_found, draw_text};
use crate::simulated::{Fault, SimClock, SimDrive, SimFiles, Stop};

const ROOT: &str = "/cache";

struct Process {
    store: Store,
    files: SimFiles,
}

struct Script {
    rng: Rng,
    drive: SimDrive,
    clock: SimClock,
    limits: StoreLimits,
    namespaces: Vec<PrefixNamespace>,
    alice: Option<OwnerId>,
    /// All objects that were ever begun.
    known: HashMap<ObjectId, ModelObject>,
    /// Objects that a loss of power may take: their folder was not synced.
    unsure: HashSet<ObjectId>,
    /// Objects whose files were changed, which a loss of power may bring back.
    changed: HashSet<ObjectId>,
    writer: Process,
    reader: Option<Process>,
}

#[test]
fn random_scripts() {
    for seed in seeds(200) {
        let outcome = std::panic::catch_unwind(|| {
            let mut script = Script::new(seed);
            for _ in 0..40 {
                script.step();
            }
        });
        outcome.inspect_err(|_| println!("seed {seed}")).unwrap();
    }
}

fn open(
    drive: &SimDrive,
    clock: &SimClock,
    limits: StoreLimits,
) -> (moeflux_prefix::Result<Store>, SimFiles) {
    let files = drive.process();
    let clock = Arc::new(clock.clone());
    let folder = PrefixFolder::with_files(ROOT.into(), Arc::new(files.clone()), clock);
    (Store::open(folder, limits), files)
}

fn ids(store: &Store) -> BTreeSet<ObjectId> {
    store.list().iter().map(|it| it.id).collect()
}

/// Whether a file in `tmp` is none of an object.
fn is_small(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    ["written-", "secret-", "CACHEDIR.TAG-"].iter().any(|it| name.starts_with(it))
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (drive, clock) = (SimDrive::default(), SimClock::default());
        clock.set(1_700_000_000);
        let n_bytes_max = rng.between(30_000, 150_000) as u64;
        let write_bytes_per_day = if rng.below(4) == 0 { 100_000 } else { 1 << 40 };
        let limits = StoreLimits { n_bytes_max, write_bytes_per_day };
        let (store, files) = open(&drive, &clock, limits);
        let store = store.unwrap();
        assert_eq!(store.role(), StoreRole::Writer);
        let alice = store.owner("alice").unwrap();
        let namespaces = vec![
            PrefixNamespace::new(b"a", OwnerId::ANONYMOUS),
            PrefixNamespace::new(b"b", OwnerId::ANONYMOUS),
            PrefixNamespace::new(b"a", alice),
        ];
        Self {
            rng,
            drive,
            clock,
            limits,
            namespaces,
            alice: Some(alice),
            known: HashMap::new(),
            unsure: HashSet::new(),
            changed: HashSet::new(),
            writer: Process { store, files },
            reader: None,
        }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..=6 => self.put(),
            7 => self.put_with_fault(),
            8 => self.put_with_stop(),
            9..=12 => self.find_and_read(),
            13 => self.damage(),
            14 => self.with_reader(),
            15 => self.prune_or_verify(),
            16 => self.jump(),
            17 => self.reopen(),
            18 => self.failing_read(),
            _ => self.give_up_writing(),
        }
        self.check_bound();
        self.check_files();
    }

    /// The bytes of all files of objects are below the bound, and counted.
    fn check_bound(&self) {
        let n_bytes = self.folder_bytes();
        let counted = self.writer.store.counts().n_bytes;
        assert!(n_bytes <= counted, "{n_bytes} bytes, of which {counted} are counted");
        assert!(counted <= self.limits.n_bytes_max, "{counted} of {:?}", self.limits);
        let damaged = self.drive.lock().files_below(&Path::new(ROOT).join("damaged"));
        assert!(damaged.len() <= N_DAMAGED_KEPT);
    }

    fn folder_bytes(&self) -> u64 {
        let drive = self.drive.lock();
        let folders = ["objects", "tmp", "damaged"].map(|it| Path::new(ROOT).join(it));
        let files = folders.iter().flat_map(|it| drive.files_below(it));
        files.filter(|(path, _)| !is_small(path)).map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Every object that the writer knows has a file, and the other way round.
    fn check_files(&self) {
        let there: BTreeSet<ObjectId> = self.image().into_iter().map(|(id, ..)| id).collect();
        let listed = ids(&self.writer.store);
        assert!(listed.is_subset(&there), "objects without files");
    }

    /// The files of objects.
    fn image(&self) -> Vec<(ObjectId, PathBuf, Vec<u8>)> {
        let files = self.drive.lock().files_below(&Path::new(ROOT).join("objects"));
        let named = files.into_iter().map(|(path, bytes)| {
            let name = path.file_name().unwrap().to_str().unwrap();
            (ObjectId::of_file_name(name).unwrap(), path.clone(), bytes)
        });
        named.collect()
    }

    /// Writes an object that is drawn. Returns its name, if it has one.
    fn write(&mut self) -> Result<ObjectId, WriteRefusal> {
        let object = ModelObject::draw(&mut self.rng, &self.namespaces);
        let (before, bytes_before) = (ids(&self.writer.store), self.writer.store.counts().n_bytes);
        let store = self.writer.store.clone();
        let written = store.begin(&object.as_new()).and_then(|mut writer| {
            let n_parts = self.rng.between(1, 3);
            for part in object.payload.chunks(object.payload.len().div_ceil(n_parts).max(1)) {
                // The failure of a write is the commit's, too.
                drop(writer.write_all(part));
            }
            writer.commit()
        });
        let after = ids(&self.writer.store);
        let had_room = bytes_before + object.file_bytes() <= self.limits.n_bytes_max;
        let left: Vec<ObjectId> = before.difference(&after).copied().collect();
        assert!(left.is_empty() || !had_room, "objects left without need");
        for left in &left {
            let left = &self.known[left];
            assert!(!object.needs(left), "what leads to an object left for it");
            let depend =
                after.iter().find(|id| self.known.get(id).is_some_and(|it| it.needs(left)));
            assert_eq!(depend, None, "an object left before what depends on it");
        }
        match &written {
            Ok(id) => {
                assert!(!before.contains(id) && after.contains(id));
                let image = self.image();
                let (_, _, bytes) = image.iter().find(|(it, ..)| it == id).unwrap();
                assert_eq!(bytes.len() as u64, object.file_bytes());
                assert!(object.is_sound(id, bytes));
                self.unsure.remove(id);
                self.changed.remove(id);
                self.known.insert(*id, object);
            }
            Err(WriteRefusal::AlreadyThere) => {
                let there = |it: &ObjectId| {
                    let it = &self.known[it];
                    (it.namespace, it.kind, it.first, &it.tokens)
                        == (object.namespace, object.kind, object.first, &object.tokens)
                };
                assert!(before.iter().any(there), "an object is refused for one that is not there");
            }
            Err(WriteRefusal::OverDayBudget { wanted_bytes, left_bytes }) => {
                assert_eq!(*wanted_bytes, object.file_bytes());
                assert!(wanted_bytes > left_bytes);
            }
            Err(_) => {}
        }
        assert!(store.counts().written_today_bytes <= self.limits.write_bytes_per_day);
        written
    }

    fn put(&mut self) {
        match self.write() {
            Err(WriteRefusal::Drive(error)) => panic!("{error}"),
            Err(WriteRefusal::NotTheWriter | WriteRefusal::Invalid(_)) => panic!("refused"),
            _ => {}
        }
    }

    /// A drive that is full, read-only or fails once takes nothing that it had.
    fn put_with_fault(&mut self) {
        let fault = self.rng.pick(&[Fault::Full, Fault::ReadOnly, Fault::Once]);
        let before = self.writer.store.counts().n_drive_errors;
        self.drive.lock().fault = Some((self.rng.below(12), fault));
        let n_writes = self.rng.between(1, 3);
        for _ in 0..n_writes {
            let written = self.write();
            let has_failed = std::mem::take(&mut self.drive.lock().has_failed);
            let is_counted = self.writer.store.counts().n_drive_errors > before;
            match written {
                Ok(id) if has_failed => drop(self.unsure.insert(id)),
                Err(WriteRefusal::Drive(_)) => assert!(has_failed && is_counted),
                _ => {}
            }
        }
        self.drive.lock().fault = None;
    }

    /// The process is killed, or the power is lost, in the middle of a write.
    fn put_with_stop(&mut self) {
        let stop = match self.rng.coin() {
            true => Stop::Kill(self.writer.files.process),
            false => Stop::Power(self.rng.bits()),
        };
        let before = ids(&self.writer.store);
        let bytes_before = self.writer.store.counts().n_bytes;
        self.drive.lock().stop = Some((self.rng.below(20), stop));
        let object = ModelObject::draw(&mut self.rng, &self.namespaces);
        let begun = self.writer.store.begin(&object.as_new());
        let written = begun.and_then(|mut writer| {
            drop(writer.write_all(&object.payload));
            writer.commit()
        });
        let was_met = self.drive.lock().stop.take().is_none();
        if let Ok(id) = written {
            self.known.insert(id, object.clone());
            if was_met {
                self.unsure.insert(id);
            }
        }
        self.known_by_name(&object);
        let had_room = bytes_before + object.file_bytes() <= self.limits.n_bytes_max;
        if was_met {
            let kept = before.difference(&self.unsure.iter().copied().collect()).copied().collect();
            let must_stay = if had_room { kept } else { BTreeSet::new() };
            if matches!(stop, Stop::Power(_)) {
                self.reader = None;
                self.unsure.clear();
            }
            self.restart(&must_stay);
        }
    }

    /// A file may have got its name although its writer never heard of it.
    fn known_by_name(&mut self, object: &ModelObject) {
        for (id, ..) in self.image() {
            self.known.entry(id).or_insert_with(|| object.clone());
        }
    }

    /// The files that are whole.
    fn sound(&self) -> BTreeSet<ObjectId> {
        let image = self.image().into_iter();
        let sound = image.filter(|(id, _, bytes)| self.known[id].is_sound(id, bytes));
        sound.map(|(id, ..)| id).collect()
    }

    /// Opens the folder again: what is whole is found, if it fits.
    fn restart(&mut self, must_stay: &BTreeSet<ObjectId>) {
        let n_bytes = self.folder_bytes();
        let sound = self.sound();
        let gone = must_stay.iter().find(|id| !sound.contains(id) && !self.changed.contains(id));
        assert_eq!(gone, None, "a committed object was lost");
        self.writer = self.open_with_trouble();
        assert_eq!(self.writer.store.role(), StoreRole::Writer);
        if let Some(alice) = self.alice {
            assert_eq!(self.writer.store.owner("alice").unwrap(), alice, "the secret was lost");
        }
        let listed = ids(&self.writer.store);
        if n_bytes <= self.limits.n_bytes_max {
            assert!(sound.is_subset(&listed), "a sound file is not found");
        }
        let parts = self.drive.lock().files_below(&Path::new(ROOT).join("tmp"));
        assert_eq!(parts, []);
    }

    /// Opens the folder, sometimes on a drive that fails, or with an end in the middle.
    fn open_with_trouble(&mut self) -> Process {
        let n_calls = self.rng.below(12);
        let fault = self.rng.pick(&[Fault::Full, Fault::ReadOnly, Fault::Once]);
        let process = self.drive.lock().n_processes() + 1;
        match self.rng.below(4) {
            0 => self.drive.lock().fault = Some((n_calls, fault)),
            1 => self.drive.lock().stop = Some((n_calls, Stop::Kill(process))),
            _ => {}
        }
        let (store, files) = open(&self.drive, &self.clock, self.limits);
        let is_dead = {
            let mut drive = self.drive.lock();
            (drive.fault, drive.stop, drive.has_failed) = (None, None, false);
            drive.is_dead(process)
        };
        match store {
            Ok(store) if !is_dead => {
                assert_eq!(store.try_take_over().unwrap(), StoreRole::Writer);
                // What could not be removed is tried again by any prune.
                store.prune(PruneRule::ToBytes(self.limits.n_bytes_max)).unwrap();
                Process { store, files }
            }
            _ => {
                let (store, files) = open(&self.drive, &self.clock, self.limits);
                Process { store: store.unwrap(), files }
            }
        }
    }

    fn reopen(&mut self) {
        let (store, files) = open(&self.drive, &self.clock, self.limits);
        let second = Process { store: store.unwrap(), files };
        assert_eq!(second.store.role(), StoreRole::Reader);
        let listed = ids(&self.writer.store);
        if self.rng.coin() {
            self.limits.n_bytes_max = self.rng.between(30_000, 150_000) as u64;
            self.reader = None;
        }
        // Dropping the store ends the writer's hold on the folder.
        self.writer = second;
        self.restart(&listed);
    }

    /// Finds a prefix in a store and reads all of it.
    fn find_in(&mut self, process: &Process) -> Option<FoundPrefix> {
        let namespace = self.rng.pick(&self.namespaces);
        let mut tokens = draw_text(&mut self.rng);
        tokens.push(9);
        let need = self.rng.pick(&[StateNeed::NoState, StateNeed::StateAtEnd]);
        let listed = ids(&process.store);
        let there = listed.iter().map(|id| (*id, &self.known[id])).collect();
        let found = process.store.find(namespace, &tokens, need);
        check_found(&found, (namespace, &tokens), need, &there);
        let n_misses_before = process.store.counts().n_misses;
        for id in found.segments.iter().chain(&found.state) {
            let mut bytes = Vec::new();
            let read = process.store.read(*id, &tokens);
            let is_whole = read.is_ok_and(|mut it| it.read_to_end(&mut bytes).is_ok());
            let expected = &self.known[id].payload;
            assert!(expected.starts_with(&bytes), "wrong bytes");
            let is_sound = self.sound().contains(id);
            if is_whole {
                assert_eq!(bytes.len(), expected.len());
            } else {
                let has_failed = std::mem::take(&mut self.drive.lock().has_failed);
                assert!(!is_sound || has_failed, "a sound object is not read");
                assert!(process.store.counts().n_misses > n_misses_before);
                assert!(!ids(&process.store).contains(id), "a miss is found again");
                return None;
            }
        }
        Some(found)
    }

    fn find_and_read(&mut self) {
        let Process { store, files } = &self.writer;
        let process = Process { store: store.clone(), files: files.clone() };
        let found = self.find_in(&process);
        if let Some(found) = found.filter(|it| it.n_tokens > 0 && self.rng.coin()) {
            self.writer.store.mark_used(&found);
        }
    }

    fn failing_read(&mut self) {
        self.drive.lock().failing_read = Some(self.rng.below(4));
        self.find_and_read();
        let mut drive = self.drive.lock();
        (drive.failing_read, drive.has_failed) = (None, false);
    }

    /// Changes a file behind the store's back.
    fn damage(&mut self) {
        let image = self.image();
        if image.is_empty() {
            return;
        }
        let (id, path, bytes) = &image[self.rng.below(image.len())];
        self.changed.insert(*id);
        match self.rng.below(4) {
            0 => self.drive.lock().cut(path, self.rng.below(bytes.len())),
            1 => {
                // Another file in its place.
                let (other_id, other, _) = &image[self.rng.below(image.len())];
                self.changed.insert(*other_id);
                let moved = self.writer.files.rename(other, path);
                moved.unwrap();
            }
            2 => self.writer.files.remove(path).unwrap(),
            _ => self.drive.lock().flip(path, self.rng.below(8 * bytes.len())),
        }
        let listed = ids(&self.writer.store);
        let sound = self.sound();
        let report = self.writer.store.verify();
        assert_eq!(report.misses.len(), listed.difference(&sound).count());
        assert_eq!(ids(&self.writer.store), listed.intersection(&sound).copied().collect());
    }

    /// A second process reads beside the writer, and changes nothing.
    fn with_reader(&mut self) {
        if self.reader.is_none() {
            let (store, files) = open(&self.drive, &self.clock, self.limits);
            self.reader = Some(Process { store: store.unwrap(), files });
        }
        let reader = self.reader.take().unwrap();
        assert_eq!(reader.store.role(), StoreRole::Reader);
        if self.rng.coin() {
            reader.store.refresh().unwrap();
            assert_eq!(ids(&reader.store), ids(&self.writer.store));
        }
        let before = self.image();
        self.find_in(&reader);
        let object = ModelObject::draw(&mut self.rng, &self.namespaces);
        let refused = reader.store.begin(&object.as_new()).map(drop);
        assert!(matches!(refused, Err(WriteRefusal::NotTheWriter)));
        assert_eq!(reader.store.try_take_over().unwrap(), StoreRole::Reader);
        assert_eq!(self.image(), before);
        if self.rng.below(4) == 0 {
            // The writer is killed, and the reader takes its place.
            self.drive.lock().kill(self.writer.files.process);
            assert_eq!(reader.store.try_take_over().unwrap(), StoreRole::Writer);
            assert_eq!(ids(&reader.store), ids(&self.writer.store));
            self.writer = reader;
        } else {
            self.reader = Some(reader);
        }
    }

    fn prune_or_verify(&mut self) {
        let store = self.writer.store.clone();
        let before = ids(&store);
        match self.rng.below(6) {
            0 => {
                assert_eq!(store.prune(PruneRule::All).unwrap(), before.len());
                assert_eq!(self.folder_bytes(), 0);
            }
            1 => {
                let n_bytes = self.rng.below(60_000) as u64;
                store.prune(PruneRule::ToBytes(n_bytes)).unwrap();
                assert!(self.folder_bytes() <= n_bytes);
            }
            _ => {
                // A loss of power may bring damaged files back.
                let sound = self.sound();
                let report = store.verify();
                let (n_sound, n_misses) = (report.n_sound, report.misses.len());
                assert_eq!(n_sound, before.intersection(&sound).count());
                assert_eq!(n_misses, before.len() - n_sound);
                assert!(ids(&store).is_subset(&sound));
            }
        }
    }

    fn jump(&mut self) {
        let seconds = self.clock.seconds();
        let jumped = match self.rng.below(3) {
            0 => seconds + 100_000,
            1 => seconds.saturating_sub(200_000),
            _ => self.rng.bits() >> 30,
        };
        self.clock.set(jumped);
    }

    /// A writer that is dropped leaves nothing.
    fn give_up_writing(&mut self) {
        let object = ModelObject::draw(&mut self.rng, &self.namespaces);
        let store = self.writer.store.clone();
        if let Ok(mut writer) = store.begin(&object.as_new()) {
            let n_bytes = self.rng.below(object.payload.len() + 1);
            writer.write_all(&object.payload[..n_bytes]).unwrap();
            let again = store.begin(&object.as_new()).map(drop);
            assert!(matches!(again, Err(WriteRefusal::AlreadyThere)));
            if n_bytes < object.payload.len() {
                assert!(matches!(writer.commit(), Err(WriteRefusal::Invalid(_))));
            } else {
                drop(writer);
            }
            // A small file that could not be removed may be left.
            let parts = self.drive.lock().files_below(&Path::new(ROOT).join("tmp"));
            assert!(parts.iter().all(|(path, _)| is_small(path)));
        }
    }
}
