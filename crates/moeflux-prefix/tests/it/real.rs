//! Real files: permissions, locks between processes, long payloads, and writers that are killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use moeflux_prefix::{
    FoundPrefix, Holding, Miss, NewObject, ObjectId, ObjectKind, OwnerId, PrefixFolder,
    PrefixNamespace, PruneRule, StateNeed, Store, StoreLimits, StoreRole, WriteRefusal,
};
use moeflux_testing::examples;
use moeflux_testing::random::{Rng, seeds};
use moeflux_testing::temp_dir::TempDir;

use crate::simulated::SimClock;

const NOT_THE_WRITER: &str = "another process writes to the folder";

const LIMITS: StoreLimits = StoreLimits { n_bytes_max: 1 << 30, write_bytes_per_day: 1 << 40 };

fn open(root: &Path, limits: StoreLimits) -> Store {
    open_at(root, limits, &SimClock::default())
}

fn open_at(root: &Path, limits: StoreLimits, clock: &SimClock) -> Store {
    let folder = PrefixFolder::new(root.join("cache"), Arc::new(clock.clone()));
    Store::open(folder, limits).unwrap()
}

fn namespace() -> PrefixNamespace {
    PrefixNamespace::new(b"test", OwnerId::ANONYMOUS)
}

fn segment(tokens: &[u32], first: usize, payload_bytes: usize) -> NewObject<'_> {
    NewObject {
        namespace: namespace(),
        kind: ObjectKind::Segment,
        tokens,
        first,
        payload_bytes: payload_bytes as u64,
        saved_ms: 1_000,
    }
}

fn put(store: &Store, object: &NewObject<'_>, payload: &[u8]) -> Result<ObjectId, WriteRefusal> {
    let mut writer = store.begin(object)?;
    writer.write_all(payload).unwrap();
    writer.commit()
}

fn file_of(root: &Path, id: ObjectId) -> PathBuf {
    let name = id.file_name();
    root.join("cache/objects").join(&name[..2]).join(name)
}

fn read(store: &Store, id: ObjectId, tokens: &[u32]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut reader = store.read(id, tokens).map_err(|miss| miss.to_string())?;
    match reader.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.downcast::<Miss>().unwrap().to_string()),
    }
}

#[test]
fn payloads_of_any_length_come_back() {
    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    let tokens: Vec<u32> = (0..5_000).collect();
    let mib = 1 << 20;
    let mut first = 0;
    let mut written = Vec::new();
    for n_bytes in [0, 1, 4095, 4096, 4097, mib - 1, mib, mib + 1, 2 * mib + 12_345] {
        let payload = Rng::new(n_bytes as u64).bytes(n_bytes);
        let end = first + 500;
        let id = put(&store, &segment(&tokens[..end], first, n_bytes), &payload).unwrap();
        written.push((id, payload));
        first = end;
    }
    for store in [store.clone(), open(root.path(), LIMITS)] {
        let found = store.find(namespace(), &tokens, StateNeed::NoState);
        let segments = written.iter().map(|it| it.0).collect();
        assert_eq!((found.n_tokens, found.segments, found.state), (4_500, segments, None));
        for (id, payload) in &written {
            assert!(read(&store, *id, &tokens).unwrap() == *payload);
        }
    }
    assert_eq!(store.verify().n_sound, written.len());
}

#[test]
fn a_changed_byte_of_any_part_is_a_miss_and_the_file_is_set_aside() {
    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    let tokens = [1, 2, 3];
    let n_bytes = (1 << 20) + 10;
    let payload = vec![5; n_bytes];
    let n_file_bytes = 4096 + n_bytes + 16;
    let places =
        [0, 130, 136, 150, 4095, 4096, 4096 + (1 << 20), n_file_bytes - 9, n_file_bytes - 1];
    for (nth, place) in places.into_iter().enumerate() {
        let id = put(&store, &segment(&tokens, 0, n_bytes), &payload).unwrap();
        let path = file_of(root.path(), id);
        let mut bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), n_file_bytes);
        bytes[place] ^= 1;
        fs::write(&path, bytes).unwrap();
        let message = read(&store, id, &tokens).unwrap_err();
        assert!(message.starts_with(&id.file_name()) && !message.contains('\n'), "{message}");
        assert_eq!(store.find(namespace(), &tokens, StateNeed::NoState), FoundPrefix::default());
        let damaged = fs::read_dir(root.path().join("cache/damaged")).unwrap().count();
        assert_eq!(damaged, (nth + 1).min(8), "at byte {place}");
        assert_eq!(store.counts().n_damaged, nth as u64 + 1);
    }
}

/// Every file below a folder, with its contents.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

#[test]
fn who_only_reads_changes_nothing_and_finds_all_damage() {
    let root = TempDir::new();
    let folder = || PrefixFolder::new(root.file("cache"), Arc::new(SimClock::default()));
    assert!(!folder().is_there().unwrap() && Store::open_to_read(folder()).is_err());
    assert!(!root.file("cache").exists());
    let store = open(root.path(), LIMITS);
    let ids: Vec<ObjectId> = (1..=3)
        .map(|token| put(&store, &segment(&[token], 0, 5000), &[7; 5000]).unwrap())
        .collect();
    drop(store);
    for (id, place) in [(ids[0], 50), (ids[1], 6000)] {
        let path = file_of(root.path(), id);
        let mut bytes = fs::read(&path).unwrap();
        bytes[place] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let before = contents(root.path());
    assert!(folder().is_there().unwrap());
    let store = Store::open_to_read(folder()).unwrap();
    assert_eq!((store.role(), store.list().len()), (StoreRole::Reader, 2));
    let damaged: Vec<ObjectId> =
        store.damaged_headers().unwrap().into_iter().map(|it| it.id).collect();
    let report = store.verify();
    assert_eq!((damaged, report.n_sound, report.n_bytes), (vec![ids[0]], 1, 5000));
    assert_eq!(report.misses.iter().map(|it| it.id).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(store.prune(PruneRule::All).unwrap_err().to_string(), NOT_THE_WRITER);
    assert_eq!(contents(root.path()), before);
}

#[test]
fn models_have_names_as_long_as_they_have_objects() {
    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    store.name_model(b"test", "a model").unwrap();
    store.name_model(b"another", "unused").unwrap();
    store.name_model(b"test", "ours").unwrap();
    let reader = open(root.path(), LIMITS);
    reader.name_model(b"test", "theirs").unwrap();
    put(&store, &segment(&[1], 0, 10), &[7; 10]).unwrap();
    let names = |store: &Store| {
        let mut names = store.model_names().unwrap();
        names.sort_by(|one, other| one.name.cmp(&other.name));
        names.into_iter().map(|it| (it.is_of(namespace()), it.name)).collect::<Vec<_>>()
    };
    let [ours, unused] = [(true, "ours".to_owned()), (false, "unused".to_owned())];
    assert_eq!(names(&reader), [ours.clone(), unused]);
    drop(store);
    // The next writer removes what nothing is called by.
    let store = open(root.path(), LIMITS);
    assert_eq!(names(&store), [ours]);
    store.prune(PruneRule::All).unwrap();
    assert_eq!(names(&store), []);
    // A damaged one is none.
    store.name_model(b"test", "ours").unwrap();
    let is_name = |it: &PathBuf| it.to_str().unwrap().contains("model-");
    let path = contents(root.path()).into_keys().find(is_name).unwrap();
    fs::write(path, b"ours\ntest?").unwrap();
    assert_eq!(names(&store), []);
}

#[test]
#[cfg(unix)]
fn files_that_change_while_they_are_read_give_no_wrong_byte() {
    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    let tokens = [1, 2];
    let payload = Rng::new(1).bytes(3 << 20);
    let object = segment(&tokens, 0, payload.len());
    let id = put(&store, &object, &payload).unwrap();
    let path = file_of(root.path(), id);

    // Another file gets the name: the reader keeps the one that it has opened.
    let mut bytes = vec![0; 100];
    let mut reader = store.read(id, &tokens).unwrap();
    reader.read_exact(&mut bytes).unwrap();
    let other = root.write("other", fs::read(&path).unwrap());
    fs::rename(&other, &path).unwrap();
    reader.read_to_end(&mut bytes).unwrap();
    assert!(bytes == payload);

    // The file itself is changed: what comes before the change is right, the rest does not come.
    let mut bytes = vec![0; 100];
    let mut reader = store.read(id, &tokens).unwrap();
    reader.read_exact(&mut bytes).unwrap();
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(4096 + (2 << 20))).unwrap();
    file.write_all(&[0; 64]).unwrap();
    reader.read_to_end(&mut bytes).unwrap_err();
    assert!(bytes == payload[..2 << 20]);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    assert_eq!(store.list(), []);
}

#[test]
fn other_tokens_are_a_miss_that_harms_nothing() {
    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    let tokens = [1, 2, 3, 4];
    let id = put(&store, &segment(&tokens, 2, 3), b"abc").unwrap();
    for others in [&[1, 2, 3, 5][..], &[0, 2, 3, 4], &[1, 2, 3], &[]] {
        let message = read(&store, id, others).unwrap_err();
        assert!(message.contains("other tokens"), "{message}");
    }
    assert_eq!(read(&store, id, &[1, 2, 3, 4, 5]).unwrap(), b"abc");
}

#[test]
#[cfg(unix)]
fn only_its_user_may_read_the_folder() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    put(&store, &segment(&[1], 0, 1), b"x").unwrap();
    let mut folders = vec![root.path().join("cache")];
    let mut n_files = 0;
    while let Some(folder) = folders.pop() {
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", path.display());
                n_files += 1;
            }
        }
    }
    // An object, the lock, the secret, the tag and the bytes of the day.
    assert_eq!(n_files, 5);
    let tag = fs::read_to_string(root.path().join("cache/CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));
}

#[test]
fn foreign_files_are_left_alone() {
    let root = TempDir::new();
    drop(open(root.path(), LIMITS));
    let foreign = ["objects/notes", "objects/ab/notes", "tmp/notes", "damaged/notes"];
    fs::create_dir_all(root.path().join("cache/objects/ab")).unwrap();
    for name in foreign {
        fs::write(root.path().join("cache").join(name), b"mine").unwrap();
    }
    let store = open(root.path(), LIMITS);
    put(&store, &segment(&[1], 0, 1), b"x").unwrap();
    store.prune(PruneRule::All).unwrap();
    for name in foreign {
        assert_eq!(fs::read(root.path().join("cache").join(name)).unwrap(), b"mine");
    }
}

#[test]
fn a_day_has_its_bytes_also_after_a_restart() {
    let root = TempDir::new();
    let clock = SimClock::default();
    let day = 86_400;
    clock.set(20_000 * day);
    let limits = StoreLimits { write_bytes_per_day: 20_000, ..LIMITS };
    let write = |token: u32| {
        let store = open_at(root.path(), limits, &clock);
        put(&store, &segment(&[token], 0, 0), b"").map(|_| store.counts().written_today_bytes)
    };
    for number in 1..=4 {
        assert_eq!(write(number).unwrap(), 4096 * u64::from(number));
    }
    let refused = write(5).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "4096 bytes exceed what may be written today: 3616 bytes are left"
    );
    clock.set(19_000 * day);
    write(5).unwrap_err();
    let store = open_at(root.path(), limits, &clock);
    put(&store, &segment(&[5], 0, 0), b"").unwrap_err();
    let counts = store.counts();
    assert_eq!((counts.n_refused, counts.n_written, counts.n_objects), (1, 0, 4));
    assert_eq!((counts.n_bytes_max, counts.write_bytes_per_day), (LIMITS.n_bytes_max, 20_000));
    drop(store);
    clock.set(19_001 * day);
    assert_eq!(write(5).unwrap(), 4096);
}

#[test]
fn objects_of_other_models_are_told_apart() {
    let root = TempDir::new();
    let store = open(root.path(), LIMITS);
    let of = |identity: &[u8], owner| PrefixNamespace::new(identity, owner);
    let key = store.owner("a key").unwrap();
    assert_eq!(store.holding(namespace()), Holding::Nothing);
    let other = NewObject { namespace: of(b"other", key), ..segment(&[1], 0, 1) };
    put(&store, &other, b"x").unwrap();
    assert_eq!(store.holding(of(b"test", key)), Holding::OtherOnly);
    assert_eq!(store.holding(namespace()), Holding::Nothing, "of another owner");
    put(&store, &NewObject { namespace: of(b"test", key), ..segment(&[1], 0, 1) }, b"x").unwrap();
    assert_eq!(store.holding(of(b"test", key)), Holding::Objects);
    store.prune(PruneRule::All).unwrap();
    assert_eq!(store.holding(of(b"test", key)), Holding::Nothing);
}

#[test]
fn what_was_not_used_for_long_goes_on_request() {
    let root = TempDir::new();
    let clock = SimClock::default();
    clock.set(1_000);
    let store = open_at(root.path(), LIMITS, &clock);
    for tokens in [&[1][..], &[1, 2], &[3], &[4]] {
        put(&store, &segment(tokens, tokens.len() - 1, 0), b"").unwrap();
    }
    clock.set(5_000);
    store.mark_used(&store.find(namespace(), &[3], StateNeed::NoState));
    drop(store);
    clock.set(6_000);
    let store = open_at(root.path(), LIMITS, &clock);
    assert_eq!(store.prune(PruneRule::UnusedFor(Duration::from_secs(9_000))).unwrap(), 0);
    assert_eq!(store.prune(PruneRule::UnusedFor(Duration::from_secs(2_000))).unwrap(), 3);
    assert_eq!(store.list().len(), 1);
    assert_eq!(store.find(namespace(), &[3], StateNeed::NoState).n_tokens, 1);
}

#[test]
fn refusals_say_why() {
    let root = TempDir::new();
    let store = open(root.path(), StoreLimits { n_bytes_max: 10_000, ..LIMITS });
    let check = |object: &NewObject<'_>, expected: &str| {
        assert_eq!(store.begin(object).unwrap_err().to_string(), expected);
    };
    let wrong = "not an object: its tokens do not fit its position";
    check(&segment(&[1], 1, 0), wrong);
    check(&segment(&[], 0, 0), wrong);
    check(&NewObject { kind: ObjectKind::State, ..segment(&[], 0, 0) }, wrong);
    check(&NewObject { kind: ObjectKind::State, ..segment(&[1], 0, 0) }, wrong);
    check(
        &segment(&[1], 0, 10_000),
        "an object of 14104 bytes does not fit: the limit is 10000 bytes",
    );
    let endless = NewObject { payload_bytes: u64::MAX, ..segment(&[1], 0, 0) };
    check(&endless, "not an object: no file is that long");
    // What leads to an object does not leave for it.
    put(&store, &segment(&[1], 0, 4000), &[0; 4000]).unwrap();
    check(
        &segment(&[1, 2], 1, 1),
        "an object of 4105 bytes does not fit: the limit is 10000 bytes",
    );
    put(&store, &segment(&[2], 0, 1), &[0]).unwrap();
    assert_eq!(store.list().len(), 1);
    let mut writer = store.begin(&segment(&[3], 0, 1)).unwrap();
    writer.write_all(b"12").unwrap_err();
    assert_eq!(
        writer.commit().unwrap_err().to_string(),
        "not an object: not all of its bytes were written"
    );
}

#[test]
#[cfg(unix)]
fn a_folder_that_cannot_be_made_is_an_error_of_one_line() {
    let root = TempDir::new();
    root.write("cache", b"a file");
    let folder = PrefixFolder::new(root.path().join("cache"), Arc::new(SimClock::default()));
    let message = Store::open(folder, LIMITS).unwrap_err().to_string();
    assert!(message.starts_with("cannot create ") && !message.contains('\n'), "{message}");
}

#[test]
fn threads_share_a_store() {
    let root = TempDir::new();
    let limits = StoreLimits { n_bytes_max: 100_000, ..LIMITS };
    let store = open(root.path(), limits);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let store = store.clone();
            scope.spawn(move || use_beside_others(&store, thread));
        }
    });
    let report = store.verify();
    assert_eq!((report.n_sound, report.misses.len()), (store.list().len(), 0));
}

fn use_beside_others(store: &Store, thread: u32) {
    let mut rng = Rng::new(thread.into());
    for _ in 0..50 {
        let tokens = &[1, 2, 3, 4, 5][..rng.between(1, 5)];
        let payload = vec![7; 1_000 * tokens.len()];
        let written = put(store, &segment(tokens, tokens.len() - 1, payload.len()), &payload);
        // Another thread may be faster.
        assert!(matches!(written, Ok(_) | Err(WriteRefusal::AlreadyThere)), "{written:?}");
        let found = store.find(namespace(), tokens, StateNeed::NoState);
        // What was found may leave before it is read.
        let mut reads = found.segments.iter().filter_map(|id| read(store, *id, tokens).ok());
        assert!(reads.all(|bytes| bytes.iter().all(|&it| it == 7)));
        assert!(store.counts().n_bytes <= 100_000);
    }
}

/// Starts the other process and waits until it has opened the folder.
fn start(root: &Path, n_bytes_max: u64) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut command = Command::new(examples::program("prefix_writer"));
    command.arg(root.join("cache")).arg(n_bytes_max.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut role = String::new();
    lines.read_line(&mut role).unwrap();
    (child, lines, role)
}

#[test]
fn writers_are_killed_at_any_moment() {
    let root = TempDir::new();
    let small = TempDir::new();
    let mut before = BTreeMap::new();
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        // In the second folder, objects leave for others.
        let (root, limits) = match seed % 4 {
            3 => (small.path(), StoreLimits { n_bytes_max: 4_000_000, ..LIMITS }),
            _ => (root.path(), LIMITS),
        };
        let (mut child, lines, role) = start(root, limits.n_bytes_max);
        assert_eq!(role, "Writer\n");
        let store = open(root, limits);
        assert_eq!(store.role(), StoreRole::Reader);
        std::thread::park_timeout(Duration::from_micros(rng.bits() % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let n_committed = lines.lines().map_while(Result::ok).count();

        assert_eq!(store.try_take_over().unwrap(), StoreRole::Writer);
        let report = store.verify();
        assert_eq!(report.misses.len(), 0, "{:?}", report.misses);
        assert!(store.counts().n_bytes <= limits.n_bytes_max);
        assert_eq!(fs::read_dir(root.join("cache/tmp")).unwrap().count(), 0);
        if limits == LIMITS {
            assert!(report.n_sound >= n_committed, "a committed object was lost");
            let now: BTreeMap<ObjectId, u64> =
                store.list().iter().map(|it| (it.id, it.file_bytes)).collect();
            assert!(before.iter().all(|(id, n_bytes)| now.get(id) == Some(n_bytes)));
            before = now;
        }
    }
}
