//! Finds, lists and removes the contents of the cache.

use std::collections::BTreeMap;

use moeflux_hub::State;
use moeflux_testing::hub::{Access, HostedContents, HubFile};

use crate::support::{Bench, FIRST, ID, SECOND, line, model, model_bytes, tree, weights};

/// Two revisions that share all but one file.
fn two_revisions() -> Bench {
    let bench = Bench::new();
    bench.pull(ID).unwrap();
    let mut files = model();
    files.retain(|it| it.path() != "tokenizer.json");
    files.push(HubFile::new("tokenizer.json", HostedContents::noise(8, 20_000)));
    bench.server.put(ID, Access::Open, SECOND, &files);
    bench.pull(ID).unwrap();
    bench
}

#[test]
fn models_are_listed_with_missing_files() {
    let bench = two_revisions();
    std::fs::create_dir_all(bench.root.join("datasets--a--b/snapshots")).unwrap();
    std::fs::create_dir_all(bench.root.join("models--old/snapshots").join(FIRST)).unwrap();
    std::fs::create_dir_all(bench.root.join("models--/x")).unwrap();
    let repos = bench.cache().repos().unwrap();
    let names: Vec<&str> = repos.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(names, ["old", ID]);
    assert_eq!(repos[0].snapshots[0].state, State::NoWeights);
    let model = &repos[1];
    assert_eq!(model.n_bytes, model_bytes() + 20_000);
    assert_eq!(model.snapshots.len(), 2);
    let by_commit: BTreeMap<&str, _> =
        model.snapshots.iter().map(|it| (it.commit.as_str(), it)).collect();
    assert_eq!(by_commit[SECOND].refs, ["main"]);
    assert!(by_commit[FIRST].refs.is_empty());
    assert!(model.snapshots.iter().all(|it| it.state == State::Whole));

    std::fs::remove_file(bench.dir().join("blobs").join(weights(2).etag())).unwrap();
    let repos = bench.cache().repos().unwrap();
    let first = weights(2).path().to_owned();
    assert_eq!(repos[1].snapshots[0].state, State::Missing { n_files: 1, first });
    // Without a listing, the index shows which files are missing.
    std::fs::remove_dir_all(bench.dir().join("trees")).unwrap();
    let message = line(bench.cache().find(&ID.parse().unwrap()));
    assert!(message.contains("incomplete") && message.contains(weights(2).path()), "{message}");
}

#[test]
fn a_revision_is_removed_with_files_that_only_it_uses() {
    let bench = two_revisions();
    let wanted = format!("{ID}@{FIRST}").parse().unwrap();
    let removal = bench.cache().removal(&wanted).unwrap();
    assert_eq!((removal.n_bytes(), removal.n_revisions_left()), (30_000, 1));
    assert_eq!(removal.run().unwrap(), 30_000);
    let left = tree(&bench.dir());
    assert!(!left.keys().any(|it| it.contains(FIRST)), "{left:?}");
    bench.cache().find(&ID.parse().unwrap()).unwrap();
    assert_eq!(bench.read(SECOND, weights(1).path()), weights(1).bytes());
    assert!(line(bench.cache().removal(&wanted)).contains("not in the cache"));

    // The last one takes all with it.
    let wanted = format!("{ID}@main").parse().unwrap();
    let removal = bench.cache().removal(&wanted).unwrap();
    assert_eq!(removal.n_revisions_left(), 0);
    assert!(removal.run().unwrap() > 200_000);
    assert!(!bench.dir().exists());
    assert!(line(bench.cache().removal(&ID.parse().unwrap())).contains("not in the cache"));
}

#[cfg(unix)]
#[test]
fn targets_of_links_are_not_removed() {
    use std::os::unix::fs::symlink;
    let bench = two_revisions();
    let outside = bench.root.with_extension("outside");
    std::fs::create_dir_all(outside.join("dir")).unwrap();
    std::fs::write(outside.join("dir/file"), b"precious").unwrap();
    let snapshot = bench.dir().join("snapshots").join(FIRST);
    symlink(outside.join("dir"), snapshot.join("dir")).unwrap();
    symlink(outside.join("dir/file"), snapshot.join("file")).unwrap();
    symlink(outside.join("dir/file"), bench.dir().join("blobs/linked")).unwrap();
    let wanted = format!("{ID}@{FIRST}").parse().unwrap();
    assert_eq!(bench.cache().removal(&wanted).unwrap().run().unwrap(), 30_000);
    bench.cache().removal(&ID.parse().unwrap()).unwrap().run().unwrap();
    assert!(!bench.dir().exists());
    assert_eq!(std::fs::read(outside.join("dir/file")).unwrap(), b"precious");

    // A model that lies elsewhere as a whole is refused.
    symlink(outside.join("dir"), bench.dir()).unwrap();
    let message = line(bench.cache().removal(&ID.parse().unwrap()));
    assert!(message.contains("is a link to") && message.contains("by hand"), "{message}");
    assert!(outside.join("dir/file").is_file());
    std::fs::remove_dir_all(outside).unwrap();
}

#[cfg(unix)]
#[test]
fn contents_that_models_share_go_with_the_last_of_them() {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    let bench = Bench::new();
    bench.pull(ID).unwrap();
    crate::support::pull(&bench.hub(), ID, &["README.md"]).unwrap();
    // The store of huggingface_hub, with contents that two models have links to.
    let hash = "ab".repeat(32);
    let store = bench.root.join("blobs/ab");
    let shared = store.join(&hash);
    std::fs::create_dir_all(&store).unwrap();
    std::fs::write(&shared, vec![1; 5000]).unwrap();
    let mut list = String::new();
    for name in ["models--owner--model", "models--owner--other"] {
        let blobs = bench.root.join(name).join("blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::create_dir_all(bench.root.join(name).join("snapshots").join(FIRST)).unwrap();
        symlink(Path::new("../../blobs/ab").join(&hash), blobs.join("etag")).unwrap();
        list.push_str(&format!("{name}/blobs/etag\n"));
    }
    std::fs::write(store.join(format!("{hash}.refs")), list).unwrap();
    let other: moeflux_hub::ModelRef = "owner/other".parse().unwrap();
    assert_eq!(bench.cache().removal(&other).unwrap().run().unwrap(), 0);
    assert!(shared.is_file(), "another model uses it");
    let freed = bench.cache().removal(&ID.parse().unwrap()).unwrap().run().unwrap();
    assert!(freed > 205_000, "{freed}");
    assert!(!shared.exists());
}

#[test]
fn a_model_that_is_being_downloaded_stays() {
    let bench = two_revisions();
    let locks = bench.root.join(".locks/models--owner--model");
    let lock = std::fs::read_dir(&locks).unwrap().next().unwrap().unwrap().path();
    let held = std::fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let message = line(bench.cache().removal(&ID.parse().unwrap()));
    assert!(message.contains("is being downloaded"), "{message}");
    drop(held);
    bench.cache().removal(&ID.parse().unwrap()).unwrap();
}
