//! Networks and servers that fail: the right bytes in the end, or an error of one line.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use moeflux_io::{Clock as _, RealClock};
use moeflux_testing::hub::{Access, HostedContents, HubFault, HubFile, ReceivedRequest};

use crate::support::{Bench, FIRST, ID, PIECE, line, model, weights};

/// The download gets the right bytes whatever goes wrong.
#[track_caller]
fn check_survives(hook: impl Fn(&ReceivedRequest, usize) -> HubFault + Send + 'static) -> Bench {
    let bench = Bench::new();
    bench.server.faults(hook);
    bench.pull(ID).unwrap();
    check_whole(&bench);
    bench
}

#[track_caller]
fn check_whole(bench: &Bench) {
    for file in model().iter().filter(|it| !it.path().starts_with(['.', 'R'])) {
        assert_eq!(bench.read(FIRST, file.path()), file.bytes(), "{}", file.path());
    }
    bench.check_tidy();
}

/// The download fails with one line that has these words, and is whole after another one.
#[track_caller]
fn check_fails(
    words: &[&str],
    hook: impl Fn(&ReceivedRequest, usize) -> HubFault + Send + 'static,
) -> Bench {
    let bench = Bench::new();
    bench.server.faults(hook);
    let message = line(bench.pull(ID));
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(!bench.dir().join("refs/main").exists(), "nothing names what is not whole");
    bench.server.faults(|_, _| HubFault::Nothing);
    bench.pull(ID).unwrap();
    check_whole(&bench);
    bench
}

#[test]
fn connections_that_break_are_made_again() {
    let bench = check_survives(|seen, n_before| match seen.is_cdn {
        // Every other answer, after some bytes or none.
        true if n_before % 2 == 0 => HubFault::Cut(n_before as u64 * 100),
        _ => HubFault::Nothing,
    });
    // The received part of a piece is not requested again.
    let seen = bench.server.take_requests();
    let begins =
        |it: &&ReceivedRequest| it.range.is_some_and(|(first, _)| !first.is_multiple_of(PIECE));
    assert!(seen.iter().any(|it| begins(&it)), "attempts go on in the middle of a piece");
}

#[test]
fn requests_to_a_busy_server_are_repeated() {
    check_survives(|_, n_before| match n_before {
        0 => HubFault::Status(503, &[]),
        1 => HubFault::Status(429, &[("Retry-After", "0")]),
        2 => HubFault::Status(500, &[]),
        _ => HubFault::Nothing,
    });
}

#[test]
fn requested_waits_are_observed_up_to_a_limit() {
    let clock = RealClock::new();
    check_survives(|seen, n_before| {
        let is_first = n_before == 0 && seen.path.ends_with("config.json") && !seen.is_cdn;
        if is_first { HubFault::Status(429, &[("Retry-After", "1")]) } else { HubFault::Nothing }
    });
    assert!(clock.now() >= Duration::from_secs(1));
    check_fails(&["status 429", "asks to wait for 3600 s"], |seen, _| match seen.is_cdn {
        true => HubFault::Status(429, &[("RateLimit", "\"api\";r=0;t=3599")]),
        false => HubFault::Nothing,
    });
}

#[test]
fn a_server_that_stays_away_is_an_error() {
    check_fails(&["status 502", "given up after 12 attempts"], |seen, _| {
        if seen.is_cdn { HubFault::Status(502, &[]) } else { HubFault::Nothing }
    });
    check_fails(&["status 500", "given up after 4 attempts"], |seen, _| {
        if seen.path.contains("/tree/") { HubFault::Status(500, &[]) } else { HubFault::Nothing }
    });
    let bench = Bench::new();
    let url = bench.server.url();
    let settings = bench.settings();
    drop(bench);
    let hub = moeflux_hub::Hub::new(
        settings,
        moeflux_hub::Trust::Marks,
        moeflux_hub::StopFlag::default(),
    );
    let message = line(crate::support::pull(&hub, ID, &[]));
    let host = url.strip_prefix("http://").unwrap();
    assert!(message.contains(host) && message.contains("given up after 4"), "{message}");
}

#[test]
fn silence_ends_an_attempt() {
    let bench = check_survives(|seen, n_before| match seen.is_cdn {
        true if n_before == 1 => HubFault::Silence(1000),
        _ => HubFault::Nothing,
    });
    drop(bench);
    check_fails(&["config.json", "given up after"], |seen, _| {
        let is_config = seen.path.contains("resolve-cache") && seen.path.ends_with("/config.json");
        if is_config { HubFault::Cut(0) } else { HubFault::Nothing }
    });
}

#[test]
fn slow_bytes_are_bytes() {
    check_survives(|seen, _| match seen.is_cdn {
        true => HubFault::Slow(1024, Duration::from_millis(5)),
        false => HubFault::Nothing,
    });
}

#[test]
fn wrong_bytes_are_refused_and_only_they_are_fetched_again() {
    let wrong = weights(2);
    let etag = wrong.etag().to_owned();
    let words = ["model-00002-of-00002.safetensors arrived with the SHA-256", "it was removed"];
    let bench = Bench::new();
    bench.server.faults(move |seen, _| {
        let is_wrong = seen.is_cdn && seen.path.contains(&etag);
        if is_wrong { HubFault::Flip(50_000) } else { HubFault::Nothing }
    });
    let message = line(bench.pull(ID));
    assert!(
        words.iter().all(|it| message.contains(it)) && message.contains(wrong.etag()),
        "{message}"
    );
    assert!(!bench.dir().join("refs/main").exists());
    assert!(!bench.dir().join("blobs").join(wrong.etag()).exists());
    bench.check_tidy();
    bench.server.faults(|_, _| HubFault::Nothing);
    bench.server.take_n_bytes();
    assert_eq!(bench.pull(ID).unwrap().fetched_bytes, 100_000, "the others arrived");
    check_whole(&bench);
}

#[test]
fn a_small_file_has_a_hash_too() {
    check_fails(&["tokenizer.json arrived with the"], |seen, _| {
        let is_it = seen.path.ends_with("tokenizer.json") && seen.is_cdn;
        if is_it { HubFault::Flip(10) } else { HubFault::Nothing }
    });
    check_fails(&["config.json arrived with the git SHA-1"], |seen, _| {
        let is_it = seen.path.contains("resolve-cache") && seen.path.ends_with("/config.json");
        if is_it { HubFault::Flip(10) } else { HubFault::Nothing }
    });
}

#[test]
fn a_server_without_ranges_sends_each_file_once() {
    let bench = check_survives(|_, _| HubFault::IgnoreRange);
    let n_bytes = bench.server.take_n_bytes();
    // Four connections send requests before one has all bytes; sockets hold some unread bytes.
    assert!(n_bytes < 10 * 100_000, "{n_bytes}");
    // The transfer also breaks, and the missing bytes are requested.
    check_survives(|seen, n_before| match seen.is_cdn {
        true if n_before % 3 == 0 => HubFault::IgnoreRange,
        true if n_before % 3 == 1 => HubFault::Cut(3000),
        _ => HubFault::Nothing,
    });
}

#[test]
fn wrong_lengths_are_refused() {
    check_fails(&["is listed with 100000 bytes, but the server has 99999"], |seen, _| {
        if seen.is_cdn { HubFault::Total(99_999) } else { HubFault::Nothing }
    });
    check_fails(&["the unrequested encoding `gzip`"], |seen, _| {
        if seen.is_cdn { HubFault::Encoded } else { HubFault::Nothing }
    });
    for (listed, words) in [
        (99_000, "but the server has 100000"),
        (u64::MAX, "which is implausible"),
        (1 << 41, "but the server has 100000"),
    ] {
        let bench = Bench::empty();
        let mut files = model();
        files.retain(|it| it.path() != weights(1).path());
        files.push(weights(1).listed_with(listed));
        bench.server.put(ID, Access::Open, FIRST, &files);
        let message = line(crate::support::pull(&bench.hub(), ID, &["model-00001*"]));
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn an_expired_address_is_requested_again() {
    let bench = Bench::new();
    let server = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&server);
    bench.server.faults(move |seen, _| {
        // The third request for a large file, and the ninth.
        let n = if seen.is_cdn { counted.fetch_add(1, Ordering::SeqCst) } else { 0 };
        if n == 3 || n == 9 { HubFault::Status(403, &[]) } else { HubFault::Nothing }
    });
    bench.pull(ID).unwrap();
    check_whole(&bench);
    bench.server.expire();
    bench.server.put(ID, Access::Open, FIRST, &model());
}

#[test]
fn an_unknown_model_is_an_error_and_an_empty_one_has_no_files() {
    let bench = Bench::empty();
    let message = line(bench.resolve(ID));
    assert!(message.contains("does not know owner/model"), "{message}");
    bench.server.put(ID, Access::Open, FIRST, &[]);
    assert!(bench.resolve(ID).unwrap().chosen().next().is_none());
}

#[test]
fn a_list_of_files_has_limits() {
    let wanted = format!("{ID}@{FIRST}");
    let small = |n: usize| {
        let file = |idx| HubFile::new(&format!("{idx}"), HostedContents::new(b""));
        (0..n).map(file).collect::<Vec<_>>()
    };
    let long = |n: usize| {
        let file =
            |idx| HubFile::new(&format!("{idx}{}", "x".repeat(1 << 20)), HostedContents::new(b""));
        (0..n).map(file).collect::<Vec<_>>()
    };
    for (files, page, words) in [
        (small(100_001), 1000, "has more than 100000 entries"),
        (small(1001), 1, "has more than 1000 pages"),
        (long(65), 8, "has more than 67108864 bytes"),
        (long(17), 100, "an answer of more than 16777216 bytes"),
        (small(3), 0, "continues after the empty page 1"),
    ] {
        let bench = Bench::empty();
        bench.server.put(ID, Access::Open, FIRST, &files);
        bench.server.set_page(page);
        let message = line(bench.resolve(&wanted));
        assert!(message.contains(words) && message.len() < 300, "{message}");
    }
    let bench = Bench::empty();
    bench.server.put(ID, Access::Open, FIRST, &small(1000));
    bench.server.set_page(1);
    assert_eq!(bench.resolve(&wanted).unwrap().listing().files().count(), 1000);
}

#[test]
fn texts_of_a_hub_are_escaped() {
    let evil = "evil\u{202e}\u{2066}.safetensors";
    let bench = Bench::empty();
    bench.server.put(
        ID,
        Access::Open,
        FIRST,
        &[HubFile::new(evil, HostedContents::noise(1, 20_000))],
    );
    bench.server.faults(|seen, _| match seen.path.contains("/resolve/") {
        true => HubFault::Status(500, &[]),
        false => HubFault::Nothing,
    });
    let message = line(bench.pull(ID));
    assert!(message.contains("evil\\u{202e}\\u{2066}.safetensors: "), "{message}");
    let bench = Bench::empty();
    bench.server.put(
        ID,
        Access::Open,
        FIRST,
        &[HubFile::new("a\x1b[2J\n", HostedContents::new(b""))],
    );
    let message = line(crate::support::pull(&bench.hub(), ID, &["*"]));
    assert!(message.contains("the file name `a\\u{1b}[2J\\n`"), "{message}");
}

#[test]
fn a_list_of_pieces_that_is_damaged_costs_bytes_only() {
    let bench = Bench::new();
    let file = weights(1);
    let blobs = bench.dir().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let partial = blobs.join(format!("{}.moeflux.incomplete", file.etag()));
    let list = blobs.join(format!("{}.moeflux-pieces.incomplete", file.etag()));
    // Pieces that never reached the drive, others that did, and bytes after the end.
    let mut bytes = file.bytes();
    bytes[9000] ^= 1;
    bytes.extend([0; 1000]);
    std::fs::write(&partial, &bytes).unwrap();
    let mut text = format!("moeflux-pieces 1 100000 {PIECE}\n");
    for idx in 0..4 {
        let piece = &file.bytes()[idx * 8192..(idx + 1) * 8192];
        text.push_str(&format!("{idx} {:016x}\n", twox_hash::XxHash3_64::oneshot(piece)));
    }
    text.push_str("5 0000000000000000\n77 0\nx\n6");
    std::fs::write(&list, text).unwrap();
    let fetched = crate::support::pull(&bench.hub(), ID, &["model-00001*"]).unwrap().fetched_bytes;
    assert_eq!(bench.read(FIRST, file.path()), file.bytes());
    // Pieces 0, 2 and 3 were sound.
    assert_eq!(fetched, 100_000 - 3 * 8192);
    bench.check_tidy();
}

#[test]
fn empty_files_and_whole_pieces_arrive() {
    let bench = Bench::empty();
    let files = [
        HubFile::new("empty.safetensors", HostedContents::new(b"")),
        HubFile::new("one.safetensors", HostedContents::noise(1, PIECE)),
        HubFile::new("two.safetensors", HostedContents::noise(2, 2 * PIECE)),
        HubFile::new("more.safetensors", HostedContents::noise(3, 2 * PIECE + 1)),
    ];
    bench.server.put(ID, Access::Open, FIRST, &files);
    bench.pull(ID).unwrap();
    for file in &files {
        assert_eq!(bench.read(FIRST, file.path()), file.bytes(), "{}", file.path());
    }
}
