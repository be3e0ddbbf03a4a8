//! Cached files whose contents differ from their hashes are found and fetched again.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;

use moeflux_hub::{FileSelection, Hub, Presence, Settings, StopFlag, Trust};
use moeflux_testing::hub::{Access, HostedContents, HubFault, HubFile};

use crate::support::{Bench, FIRST, ID, PIECE, line, model, model_bytes, pull, weights};

/// Changes a bit in the middle, and nothing else.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    // In place: the file stays the same one.
    let mut options = File::options();
    let mut file = options.write(true).open(path).unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
}

fn presence(hub: &Hub) -> Presence {
    let remote = hub.resolve(&ID.parse().unwrap(), &FileSelection::Usual).unwrap();
    hub.presence(&remote, PIECE, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[track_caller]
fn check_whole(bench: &Bench) {
    for file in model().iter().filter(|it| !it.path().starts_with(['.', 'R'])) {
        assert_eq!(bench.read(FIRST, file.path()), file.bytes(), "{}", file.path());
    }
    bench.check_tidy();
}

#[test]
fn files_that_moeflux_wrote_are_not_hashed_again() {
    let bench = Bench::new();
    let pulled = bench.pull(ID).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (model_bytes(), 0));
    let pulled = bench.pull(ID).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, 0));
    let found = presence(&bench.hub());
    assert_eq!((found.hashed_bytes, found.here_bytes), (0, model_bytes()));
    // Without trust in marks, all files are hashed, once.
    let hub = Hub::new(bench.settings(), Trust::Nothing, StopFlag::default());
    let found = presence(&hub);
    assert_eq!((found.hashed_bytes, found.here_bytes), (model_bytes(), model_bytes()));
    let pulled = pull(&hub, ID, &[]).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, 0));
}

#[test]
fn files_of_other_programs_are_hashed_once() {
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    let marks = bench.dir().join(".moeflux");
    fs::remove_dir_all(&marks).unwrap();
    let pulled = bench.pull(ID).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, model_bytes()));
    let pulled = bench.pull(ID).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, 0));

    fs::remove_dir_all(&marks).unwrap();
    flip(&bench.blob(&weights(1)));
    let found = presence(&bench.hub());
    assert_eq!(found.damaged, [weights(1).path()]);
    assert_eq!(found.n_bytes - found.here_bytes, 100_000);
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 100_000);
    check_whole(&bench);

    // Where no mark can be written all is hashed each time.
    fs::remove_dir_all(&marks).unwrap();
    fs::write(&marks, "a file").unwrap();
    for _ in 0..2 {
        let pulled = bench.pull(ID).unwrap();
        assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, model_bytes()));
    }
}

#[test]
fn a_flipped_bit_is_mended() {
    for file in model().iter().filter(|it| !it.path().starts_with(['.', 'R']) && it.n_bytes() > 0) {
        let bench = Bench::new();
        bench.pull(ID).unwrap();
        let blob = bench.blob(file);
        flip(&blob);
        assert_eq!(bench.pull(ID).unwrap().fetched_bytes, file.n_bytes(), "{}", file.path());
        check_whole(&bench);
        assert_eq!(bench.pull(ID).unwrap().hashed_bytes, 0);
    }
}

#[cfg(unix)]
#[test]
fn a_mark_does_not_hold_for_a_file_that_changed() {
    use std::os::unix::fs::MetadataExt as _;
    let file = weights(2);
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 3] = [
        ("written, with the old time", |path| {
            let time = fs::metadata(path).unwrap().modified().unwrap();
            flip(path);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }),
        ("replaced, with the old time", |path| {
            let time = fs::metadata(path).unwrap().modified().unwrap();
            let other = path.with_extension("other");
            fs::copy(path, &other).unwrap();
            flip(&other);
            File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
            fs::rename(other, path).unwrap();
        }),
        ("written, with another time", flip),
    ];
    for (what, change) in changes {
        let bench = Bench::new();
        bench.pull(ID).unwrap();
        change(&bench.blob(&file));
        assert_eq!(bench.pull(ID).unwrap().fetched_bytes, file.n_bytes(), "{what}");
        check_whole(&bench);
    }

    // A change that a mark cannot detect: the mark is made for the changed file.
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    let blob = bench.blob(&file);
    flip(&blob);
    let it = fs::metadata(&blob).unwrap();
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let (modified, changed) = (ns(it.mtime(), it.mtime_nsec()), ns(it.ctime(), it.ctime_nsec()));
    let line = format!("{} {} {} {modified} {changed}\n", it.len(), it.dev(), it.ino());
    let mark = bench.dir().join(".moeflux").join(file.etag());
    fs::write(mark, format!("moeflux-mark 1\n{line}")).unwrap();
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 0, "it is trusted");
    let hub = Hub::new(bench.settings(), Trust::Nothing, StopFlag::default());
    assert_eq!(pull(&hub, ID, &[]).unwrap().fetched_bytes, file.n_bytes());
    check_whole(&bench);
}

#[test]
fn copies_have_marks_of_their_own() {
    let bench = Bench::new();
    let settings = Settings { has_no_links: true, ..bench.settings() };
    let hub = || Hub::new(settings.clone(), Trust::Marks, StopFlag::default());
    pull(&hub(), ID, &[]).unwrap();
    let pulled = pull(&hub(), ID, &[]).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, 0));
    for name in ["config.json", weights(1).path()] {
        flip(&bench.dir().join("snapshots").join(FIRST).join(name));
    }
    let pulled = pull(&hub(), ID, &[]).unwrap();
    assert_eq!(pulled.fetched_bytes, 27 + 100_000);
    check_whole(&bench);
    assert_eq!(pull(&hub(), ID, &[]).unwrap().hashed_bytes, 0);
}

#[test]
fn damaged_files_do_not_look_whole_during_repair() {
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    flip(&bench.blob(&weights(1)));
    let found = presence(&bench.hub());
    assert_eq!(found.damaged, [weights(1).path()]);
    assert!(bench.blob(&weights(1)).is_file(), "who only looks removes nothing");
    bench.server.faults(|seen, _| match seen.is_cdn {
        true => HubFault::Status(502, &[]),
        false => HubFault::Nothing,
    });
    assert!(line(bench.pull(ID)).contains("given up"));
    let message = line(bench.cache().find(&ID.parse().unwrap()));
    assert!(message.contains("incomplete") && message.contains(weights(1).path()), "{message}");
    bench.server.faults(|_, _| HubFault::Nothing);
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 100_000);
    check_whole(&bench);
}

#[test]
fn a_config_that_is_damaged_is_not_believed() {
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    let config =
        HubFile::new("config.json", HostedContents::new(b"{\"model_type\": \"qwen3_moe\"}"));
    flip(&bench.blob(&config));
    let remote = bench.resolve(ID).unwrap();
    assert_eq!(bench.hub().config(&remote).unwrap().unwrap(), config.bytes());
}

#[cfg(unix)]
#[test]
fn the_target_of_a_linked_blob_is_not_removed() {
    use std::os::unix::fs::symlink;
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    let blob = bench.blob(&weights(1));
    let shared = bench.root.join("shared");
    fs::rename(&blob, &shared).unwrap();
    symlink(&shared, &blob).unwrap();
    let pulled = bench.pull(ID).unwrap();
    assert_eq!((pulled.fetched_bytes, pulled.hashed_bytes), (0, 100_000), "moved, and whole");
    flip(&shared);
    let damaged = fs::read(&shared).unwrap();
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 100_000);
    assert_eq!(fs::read(&shared).unwrap(), damaged);
    assert!(!blob.is_symlink());
    check_whole(&bench);
}

#[test]
fn a_revision_takes_its_marks_with_it() {
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    let mut files = model();
    files.retain(|it| it.path() != weights(1).path());
    files.push(HubFile::new(weights(1).path(), HostedContents::noise(9, 50_000)));
    bench.server.put(ID, Access::Open, crate::support::SECOND, &files);
    bench.pull(ID).unwrap();
    let mark = bench.dir().join(".moeflux").join(weights(1).etag());
    assert!(mark.is_file());
    let wanted = format!("{ID}@{FIRST}").parse().unwrap();
    bench.cache().removal(&wanted).unwrap().run().unwrap();
    assert!(!mark.exists());
    assert!(bench.dir().join(".moeflux").join(weights(2).etag()).is_file());
}
