//! Successful downloads: the layout, the files that are fetched again, the receivers of the token.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux_hub::{FileSelection, Hub, Settings, StopFlag, Trust};
use moeflux_testing::hub::{Access, HostedContents, HubFault, HubFile};

use crate::support::{
    Bench, FIRST, ID, PIECE, SECOND, line, model, model_bytes, pull, tree, weights,
};

#[test]
fn a_model_arrives_in_the_layout_of_the_hub_s_own_tools() {
    let bench = Bench::new();
    bench.server.set_page(3);
    let pulled = bench.pull(ID).unwrap();
    assert_eq!(pulled.dir, bench.dir().join("snapshots").join(FIRST));
    assert_eq!(bench.server.take_n_bytes(), pulled.fetched_bytes);
    // One that asks, and four to each server.
    let n_connections = bench.server.n_connections();
    assert!(n_connections <= 1 + 4 + 4, "{n_connections} connections");
    let files = model();
    let wanted = files.iter().filter(|it| !it.path().starts_with(['.', 'R']));
    let mut expected = vec!["refs/main 40".to_owned()];
    for file in wanted {
        let up = if file.path().contains('/') { "../../../" } else { "../../" };
        let etag = file.etag();
        expected.push(format!("snapshots/{FIRST}/{} -> {up}blobs/{etag}", file.path()));
        let blob = format!("blobs/{etag} {}", file.n_bytes());
        if !expected.contains(&blob) {
            expected.push(blob);
        }
        assert_eq!(bench.read(FIRST, file.path()), file.bytes(), "{}", file.path());
    }
    expected.sort();
    let mut found: Vec<String> =
        tree(&bench.dir()).into_iter().map(|(name, what)| format!("{name} {what}")).collect();
    found.retain(|it| !it.starts_with("trees/") && !it.starts_with(".moeflux/"));
    found.sort();
    assert_eq!(found, expected);
    let commit = std::fs::read_to_string(bench.dir().join("refs/main")).unwrap();
    assert_eq!(commit, FIRST);
    assert!(bench.root.join("CACHEDIR.TAG").is_file());
    let kept = std::fs::read(bench.dir().join(format!("trees/{FIRST}.json"))).unwrap();
    let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept["files"].as_object().unwrap().len(), files.len());
    assert_eq!(bench.cache().find(&ID.parse().unwrap()).unwrap(), pulled.dir);
}

#[test]
fn cached_files_are_not_fetched_again() {
    let bench = Bench::new();
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, model_bytes());
    bench.server.take_n_bytes();
    bench.server.take_requests();
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 0);
    assert_eq!(bench.server.take_n_bytes(), 0);
    assert_eq!(bench.server.take_requests().len(), 1, "only the commit is asked for");

    // A new commit, with one other file.
    let mut files = model();
    files.retain(|it| it.path() != "tokenizer.json");
    files.push(HubFile::new("tokenizer.json", HostedContents::noise(8, 20_000)));
    bench.server.put(ID, Access::Open, SECOND, &files);
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 20_000);
    assert_eq!(bench.server.take_n_bytes(), 20_000);
    assert_eq!(bench.read(SECOND, "tokenizer.json").len(), 20_000);
    assert_eq!(bench.read(FIRST, "tokenizer.json").len(), 30_000);
    let main = std::fs::read_to_string(bench.dir().join("refs/main")).unwrap();
    assert_eq!(main, SECOND);

    // A snapshot that lost a link, and contents that lost bytes.
    let dir = bench.dir().join("snapshots").join(SECOND);
    std::fs::remove_file(dir.join("config.json")).unwrap();
    let blob = bench.dir().join("blobs").join(weights(1).etag());
    std::fs::write(&blob, b"short").unwrap();
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 100_000);
    assert_eq!(bench.read(SECOND, weights(1).path()), weights(1).bytes());
    bench.check_tidy();
}

#[test]
fn a_revision_is_a_branch_a_tag_or_a_commit() {
    let bench = Bench::new();
    bench.server.put(ID, Access::Open, SECOND, &model());
    let pulled = bench.pull(&format!("{ID}@{FIRST}")).unwrap();
    assert!(pulled.dir.ends_with(FIRST));
    assert!(!bench.dir().join("refs").exists(), "a commit needs no reference");
    let find = |wanted: &str| bench.cache().find(&wanted.parse().unwrap());
    assert_eq!(find(&format!("{ID}@{FIRST}")).unwrap(), pulled.dir);
    assert_eq!(find(&format!("{ID}@{}", &FIRST[..8])).unwrap(), pulled.dir);
    assert!(line(find(ID)).contains("not in the cache"));
    assert!(line(find(&format!("{ID}@{SECOND}"))).contains("not in the cache"));
    let message = line(bench.pull(&format!("{ID}@no-such-tag")));
    assert!(message.contains("has no revision no-such-tag"), "{message}");
    let message = line(bench.pull("owner/none"));
    assert!(message.contains("does not know owner/none"), "{message}");
}

#[test]
fn files_are_chosen_by_patterns() {
    let bench = Bench::new();
    let mut files = model();
    files.push(HubFile::new("q/x-Q4.gguf", HostedContents::noise(9, 50_000)));
    bench.server.put(ID, Access::Open, FIRST, &files);
    let pulled = pull(&bench.hub(), ID, &["*.gguf", "README*"]).unwrap();
    assert_eq!(pulled.fetched_bytes, 50_000 + 10);
    assert_eq!(bench.read(FIRST, "q/x-Q4.gguf").len(), 50_000);
    assert!(line(bench.cache().find(&ID.parse().unwrap())).contains("incomplete"));
    let remote = bench.hub().resolve(&ID.parse().unwrap(), &FileSelection::Usual).unwrap();
    assert_eq!(remote.ggufs().map(|(path, _)| path).collect::<Vec<_>>(), ["q/x-Q4.gguf"]);
    bench.pull(ID).unwrap();
    bench.cache().find(&ID.parse().unwrap()).unwrap();
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let bench = Bench::empty();
    bench.server.put(ID, Access::Gated("hf_good"), FIRST, &model());
    let url = bench.server.url();
    let message = line(bench.pull(ID));
    let hint = format!("accept its terms at {url}/{ID} and set HF_TOKEN");
    assert!(message.contains("is gated") && message.contains(&hint), "{message}");
    let message = line(pull(&bench.hub_with("hf_bad"), ID, &[]));
    assert!(
        message.contains("a token that may read it") && !message.contains("hf_bad"),
        "{message}"
    );
    bench.server.take_requests();
    pull(&bench.hub_with("hf_good"), ID, &[]).unwrap();
    let mut seen = bench.server.take_requests();
    // Requests of the previous pull may be recorded late.
    seen.retain(|it| it.token.as_deref() != Some("hf_bad"));
    let (elsewhere, here): (Vec<_>, Vec<_>) = seen.iter().partition(|it| it.is_cdn);
    assert!(!elsewhere.is_empty() && elsewhere.iter().all(|it| it.token.is_none()), "{seen:?}");
    assert!(here.iter().all(|it| it.token.as_deref() == Some("hf_good")), "{seen:?}");
    // The address of a file is requested once, not for each piece.
    let n_asked = here.iter().filter(|it| it.path.ends_with(weights(1).path())).count();
    assert!(n_asked <= 4, "{n_asked}");

    bench.server.put("owner/private", Access::Private("hf_good"), FIRST, &model());
    let message = line(bench.pull("owner/private"));
    assert!(message.contains("or it is private") && message.contains("set HF_TOKEN"), "{message}");
}

#[test]
fn offline_mode_uses_no_network() {
    let bench = Bench::new();
    let settings = Settings { is_offline: true, ..bench.settings() };
    let message = line(pull(&Hub::new(settings, Trust::Marks, StopFlag::default()), ID, &[]));
    assert!(message.contains("HF_HUB_OFFLINE"), "{message}");
    assert!(bench.server.take_requests().is_empty());
}

#[test]
fn without_links_files_are_in_the_snapshot() {
    let bench = Bench::new();
    let settings = Settings { has_no_links: true, ..bench.settings() };
    let hub = Hub::new(settings, Trust::Marks, StopFlag::default());
    pull(&hub, ID, &[]).unwrap();
    for file in model().iter().filter(|it| !it.path().starts_with(['.', 'R'])) {
        assert_eq!(bench.read(FIRST, file.path()), file.bytes());
        let path = bench.dir().join("snapshots").join(FIRST).join(file.path());
        assert!(!path.is_symlink(), "{}", path.display());
    }
    assert_eq!(std::fs::read_dir(bench.dir().join("blobs")).unwrap().count(), 0);
    assert_eq!(pull(&hub, ID, &[]).unwrap().fetched_bytes, 0);
    bench.cache().find(&ID.parse().unwrap()).unwrap();
}

#[test]
fn two_downloads_of_the_same_share_the_work() {
    for has_no_links in [false, true] {
        let bench = Bench::new();
        bench.server.faults(|seen, _| match seen.is_cdn {
            true => HubFault::Slow(4096, std::time::Duration::from_millis(2)),
            false => HubFault::Nothing,
        });
        let hubs = [0; 3].map(|_| {
            Hub::new(
                Settings { has_no_links, ..bench.settings() },
                Trust::Marks,
                StopFlag::default(),
            )
        });
        std::thread::scope(|scope| {
            for hub in &hubs {
                scope.spawn(|| pull(hub, ID, &[]).unwrap());
            }
        });
        assert_eq!(bench.server.take_n_bytes(), model_bytes(), "each byte is fetched once");
        for file in model().iter().filter(|it| !it.path().starts_with(['.', 'R'])) {
            assert_eq!(bench.read(FIRST, file.path()), file.bytes());
        }
        bench.check_tidy();
    }
}

#[test]
fn a_cancelled_download_keeps_its_pieces() {
    let bench = Bench::new();
    bench.server.faults(|seen, _| match seen.is_cdn {
        true => HubFault::Slow(2048, std::time::Duration::from_millis(20)),
        false => HubFault::Nothing,
    });
    let hub = bench.hub();
    let remote = hub.resolve(&ID.parse().unwrap(), &FileSelection::Usual).unwrap();
    let n_connections = NonZeroUsize::new(2).unwrap();
    let ended = hub.pull(&remote, n_connections, PIECE, &mut |progress| {
        assert!(progress.done_bytes <= progress.total_bytes);
        let is_enough = progress.done_bytes > 100_000;
        if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(line(ended), "cancelled");
    assert!(!bench.dir().join("refs/main").exists());
    let message = line(bench.cache().find(&ID.parse().unwrap()));
    assert!(message.contains("not in the cache"), "{message}");
    let before = bench.server.n_bytes();
    assert!(before < model_bytes(), "it was ended before the end");
    bench.server.faults(|_, _| HubFault::Nothing);
    let presence =
        bench.hub().presence(&remote, PIECE, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(presence.here_bytes > 60_000 && presence.here_bytes < presence.n_bytes);
    let rest = bench.pull(ID).unwrap().fetched_bytes;
    assert_eq!(rest, presence.n_bytes - presence.here_bytes);
    // Half a piece of each connection is fetched twice, and so are the bytes in flight.
    assert!(before + rest <= model_bytes() + 2 * 2 * PIECE, "{before} {rest}");
    bench.check_tidy();
}

#[test]
fn a_prefix_of_the_hub_s_own_tools_is_left_alone() {
    let bench = Bench::new();
    let blobs = bench.dir().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let prefix = blobs.join(format!("{}.incomplete", weights(1).etag()));
    std::fs::write(&prefix, b"of another program").unwrap();
    bench.pull(ID).unwrap();
    assert_eq!(std::fs::read(&prefix).unwrap(), b"of another program");
    assert_eq!(bench.read(FIRST, weights(1).path()), weights(1).bytes());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../../evil.safetensors", "..\\evil.safetensors", "a:b.safetensors"] {
        let bench = Bench::empty();
        let files = [
            HubFile::new("config.json", HostedContents::new(b"{}")),
            HubFile::new(name, HostedContents::noise(1, 20_000)),
        ];
        bench.server.put(ID, Access::Open, FIRST, &files);
        let message = line(pull(&bench.hub(), ID, &["*"]));
        assert!(message.contains("the file name"), "{message}");
        assert!(!bench.root.exists(), "nothing was written");
    }
    let bench = Bench::empty();
    bench.server.put(ID, Access::Open, "../../evil", &model());
    let message = line(bench.pull(ID));
    assert!(message.contains("does not answer as the Hugging Face hub"), "{message}");
    assert!(!Path::new(&bench.root).exists());
}
