//! `moeflux pull`, `list`, `rm` and models by name, from a hub on this machine.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use moeflux_testing::hub::{Access, HostedContents, HubFault, HubFile, HubServer};
use serde_json::Value;

use crate::support::ModelDir;

pub(super) const ID: &str = "owner/model";
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Longer than anything below takes on the slowest machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A hub, and a home that is empty.
pub(super) struct PullFixture {
    pub(super) server: HubServer,
    pub(super) home: ModelDir,
}

impl PullFixture {
    /// Creates a hub with these files.
    pub(super) fn new(files: &[HubFile]) -> Self {
        let server = HubServer::new();
        server.put(ID, Access::Open, COMMIT, files);
        Self { server, home: ModelDir::new() }
    }

    /// Creates a hub with a model that can be run.
    pub(super) fn with_model() -> Self {
        let made = ModelDir::synthetic();
        let mut files = vec![HubFile::new("README.md", HostedContents::new(b"# A model"))];
        for entry in std::fs::read_dir(made.file("model")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            files.push(HubFile::new(&name, HostedContents::new(&std::fs::read(&path).unwrap())));
        }
        Self::new(&files)
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
        for name in ["HOME", "USERPROFILE", "LOCALAPPDATA"] {
            command.env(name, self.home.path());
        }
        for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.home.file("hf")).env("HF_ENDPOINT", self.server.url());
        command.env("NODEVICE_SELECT", "1").args(args).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    #[track_caller]
    pub(super) fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Checks that a command fails with this status, and that the last line of stderr contains
    /// these words.
    #[track_caller]
    pub(super) fn check_fails(&self, status: i32, args: &[&str], words: &[&str]) {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: something on stdout");
        let error = stderr.lines().find(|it| it.starts_with("error: "));
        let error = error.unwrap_or("no error");
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {stderr}");
        }
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.home.file("hf").join("hub/models--owner--model")
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the hub has sent this number of bytes.
    fn wait_for_bytes(&self, n_bytes: u64) {
        let mut n_looks_left = PATIENCE.as_millis() / LOOK_EVERY.as_millis();
        while self.server.n_bytes() < n_bytes {
            n_looks_left = n_looks_left.checked_sub(1).expect("the download goes on");
            std::thread::park_timeout(LOOK_EVERY);
        }
    }
}

fn outcome(child: &mut Child) -> (Option<i32>, String) {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

#[test]
fn a_kind_of_gguf_file_is_pulled_and_run_by_name() {
    let made = ModelDir::synthetic_gguf();
    let gguf = std::fs::read(made.file("model/model.gguf")).unwrap();
    let file = |name: &str| HubFile::new(name, HostedContents::new(&gguf));
    let other = HubFile::new("mmproj-F16.gguf", HostedContents::new(b"GGUF"));
    let fixture = PullFixture::new(&[file("x-UD-Q4_K_M.gguf"), file("Q8_0/x-Q8_0.gguf"), other]);
    let kinds = ["name the kind", "owner/model:Q4_K_M", "Q8_0 (", "UD-Q4_K_M ("];
    fixture.check_fails(1, &["pull", ID, "--yes"], &kinds);
    fixture.check_fails(1, &["pull", "owner/model:Q5_0", "--yes"], &["no GGUF file", "Q8_0 ("]);
    fixture.check_fails(2, &["pull", "owner/model:", "--yes"], &["a kind of GGUF file"]);
    let next = fixture.stdout(&["pull", "owner/model:Q4_K_M", "--yes"]);
    assert!(next.contains("next: moeflux chat --model owner/model:Q4_K_M"), "{next}");
    let run = |model: &str| {
        fixture.stdout(&["generate", "Once", "-n", "1", "--seed", "1", "--model", model])
    };
    let answer = run("owner/model:Q4_K_M");
    let link = "https://huggingface.co/owner/model/blob/main/Q8_0/x-Q8_0.gguf";
    fixture.stdout(&["pull", link, "--yes"]);
    assert_eq!(run("owner/model:Q8_0"), answer);
    assert_eq!(run("hf.co/owner/model:q4_k_m"), answer);
    let generate = ["generate", "Once", "--model"];
    let fails = |model, words: &[&str]| {
        fixture.check_fails(1, &[&generate[..], &[model]].concat(), words);
    };
    fails("owner/model", &["2 GGUF models"]);
    fails("owner/model:Q6_K", &["`moeflux pull owner/model:Q6_K`"]);
    fixture.check_fails(2, &["rm", "owner/model:Q8_0", "--yes"], &["leave out `:Q8_0`"]);
}

#[test]
fn a_missing_model_is_pulled_on_request() {
    let fixture = PullFixture::with_model();
    let generate = ["generate", "Once", "-n", "1", "--seed", "1", "--model", ID];
    fixture.check_fails(1, &generate, &["no such model", "`moeflux pull owner/model`", "--yes"]);
    assert!(!fixture.dir().exists());
    let output = fixture.run(&[&generate[..], &["--yes"]].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("is not here: asking the hub for owner/model"), "{stderr}");
    let again = fixture.run(&generate);
    assert_eq!((again.stdout, again.status.code()), (output.stdout, Some(0)));

    // The hub of this test has no other model; the download reports that once.
    let output = fixture.run(&["generate", "x", "--yes", "--model", "owner/other"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.matches("error: ").count()), (Some(1), 1), "{stderr}");

    let known = ["generate", "x", "--model", "qwen3-30b-a3b"];
    fixture.check_fails(1, &known, &["`moeflux pull mlx-community/Qwen3-30B-A3B-4bit`"]);
    fixture.check_fails(1, &["generate", "x", "--model", "qwen3"], &["is ambiguous"]);
    let plan = fixture.stdout(&["plan", "qwen3-30b-a3b", "--ram", "64G"]);
    assert!(plan.ends_with("* `moeflux pull mlx-community/Qwen3-30B-A3B-4bit` downloads it\n"));
}

#[test]
fn a_model_is_pulled_listed_run_and_removed() {
    let fixture = PullFixture::with_model();
    let page = fixture.stdout(&["pull", ID, "--dry-run"]);
    for words in ["owner/model at main (0123456789ab)", "qwen3_moe", "files", "free in", "tokens/s"]
    {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    assert!(!fixture.home.file("hf").exists(), "nothing was written");
    fixture.check_fails(2, &["pull", ID], &["Download ", "--yes"]);
    assert!(!fixture.home.file("hf").exists(), "nothing was written");

    let printed = fixture.stdout(&["pull", ID, "--yes"]);
    assert!(printed.contains("downloaded"), "{printed}");
    let next = "next: moeflux chat --model owner/model";
    assert!(printed.contains(next), "{printed}");
    let again = fixture.stdout(&["pull", ID]);
    assert!(again.contains("all was there"), "{again}");

    let named = ["generate", "Once", "-n", "4", "--seed", "7", "--model"];
    let dir = fixture.dir().join("snapshots").join(COMMIT);
    let by_name = fixture.stdout(&[&named[..], &[ID]].concat());
    assert_eq!(by_name, fixture.stdout(&[&named[..], &[dir.to_str().unwrap()]].concat()));
    let at_commit = format!("{ID}@{COMMIT}");
    for args in [&["inspect", ID][..], &["plan", &at_commit], &["verify", "owner/model@main"]] {
        fixture.stdout(args);
    }
    let packed = fixture.home.file("packed");
    fixture.stdout(&["pack", ID, packed.to_str().unwrap()]);
    let examined = fixture.stdout(&["doctor", ID, "--file-size", "4M", "--json"]);
    assert!(examined.contains(COMMIT), "{examined}");

    let listed: Value = serde_json::from_str(&fixture.stdout(&["list", "--json"])).unwrap();
    assert_eq!(listed["models"][0]["name"], ID);
    let revision = &listed["models"][0]["revisions"][0];
    assert_eq!((&revision["state"], &revision["refs"][0]), (&"whole".into(), &"main".into()));
    assert!(revision["model"].as_str().unwrap().starts_with("qwen3_moe"), "{revision}");
    let page = fixture.stdout(&["list"]);
    assert!(page.contains("owner/model: ") && page.contains("  main "), "{page}");

    fixture.check_fails(2, &["rm", ID], &["Remove owner/model", "--yes"]);
    let removed = fixture.stdout(&["rm", ID, "--yes"]);
    assert!(removed.contains("was removed") && removed.contains("freed"), "{removed}");
    assert!(fixture.stdout(&["list"]).contains("no models in"));
    fixture.check_fails(1, &["rm", ID, "--yes"], &["is not in the cache"]);
}

#[test]
fn a_folder_wins_over_a_name() {
    let fixture = PullFixture::with_model();
    fixture.stdout(&["pull", ID, "--yes"]);
    std::fs::create_dir_all(fixture.home.file("owner/model")).unwrap();
    let mut command = fixture.command(&["inspect", ID]);
    let output = command.current_dir(fixture.home.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("it has no config.json"), "{stderr}");
}

#[test]
fn a_model_that_is_not_here_names_the_command_that_fetches_it() {
    let fixture = PullFixture::with_model();
    for args in [
        &["generate", "x", "--model", ID][..],
        &["plan", ID],
        &["inspect", ID],
        &["verify", ID],
        &["doctor", ID],
        &["pack", ID, "out"],
        &["bench", "--model", "owner/model@v1"],
    ] {
        fixture.check_fails(1, args, &["there is no such folder", "`moeflux pull"]);
    }
    fixture.stdout(&["pull", ID, "--yes", "--file", "*.json"]);
    let words = ["is incomplete", "`moeflux pull owner/model` completes it"];
    fixture.check_fails(1, &["inspect", ID], &words);
    let page = fixture.stdout(&["list"]);
    assert!(page.contains("! main") && page.contains("incomplete: "), "{page}");
    fixture.stdout(&["pull", ID, "--yes"]);
    fixture.stdout(&["inspect", ID]);
}

#[test]
fn unusable_models_are_refused_before_a_download() {
    let gguf = HubFile::new("x-Q4_K_M.gguf", HostedContents::noise(1, 20_000));
    let fixture =
        PullFixture::new(&[gguf, HubFile::new("config.json", HostedContents::new(b"{}"))]);
    let words = ["has GGUF files", "--file", "Q4_K_M (20.00 kB)"];
    fixture.check_fails(1, &["pull", ID, "--yes"], &words);
    fixture.check_fails(1, &["pull", ID, "--file", "*.bin"], &["no file of owner/model matches"]);
    let printed = fixture.stdout(&["pull", ID, "--yes", "--file", "*Q4*"]);
    assert!(!printed.contains("next:"), "{printed}");
    assert!(fixture.stdout(&["list"]).contains("GGUF"));
    let config = HubFile::new("config.json", HostedContents::new(b"{\"model_type\": \"phi3\"}"));
    let weights = HubFile::new("model.safetensors", HostedContents::noise(1, 20_000));
    let fixture = PullFixture::new(&[config, weights]);
    let page = fixture.stdout(&["pull", ID, "--dry-run"]);
    assert!(page.contains("moeflux cannot run it: ") && page.contains("phi3"), "{page}");
}

#[test]
fn wrong_names_and_refusals_have_their_exit_codes() {
    let fixture = PullFixture::new(&[]);
    fixture.check_fails(2, &["pull", "../evil"], &["is not the name of a repository"]);
    fixture.check_fails(2, &["pull", "a/b@../c"], &["is not a revision"]);
    fixture.check_fails(2, &["pull", "model@v1"], &["write OWNER/NAME, ", ": .../model@v1"]);
    fixture.check_fails(2, &["rm", "a/b/c"], &["is not the name of a repository"]);
    fixture.check_fails(1, &["pull", "owner/none"], &["does not know owner/none"]);
    let mut offline = fixture.command(&["pull", ID]);
    let output = offline.env("HF_HUB_OFFLINE", "1").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("HF_HUB_OFFLINE is set"), "{stderr}");
    let files = [
        HubFile::new("config.json", HostedContents::new(b"{}")),
        HubFile::new("model.safetensors", HostedContents::noise(1, 10_000)).listed_with(1 << 41),
    ];
    let fixture = PullFixture::new(&files);
    if cfg!(unix) {
        let words = ["hub: needs 2.20 TB", "are available", "free some space"];
        fixture.check_fails(1, &["pull", ID, "--yes"], &words);
    }
}

#[test]
fn damaged_files_are_named_and_repaired() {
    let files = [
        HubFile::new("config.json", HostedContents::new(b"{}")),
        HubFile::new("model.safetensors", HostedContents::noise(1, 20_000)),
    ];
    let fixture = PullFixture::new(&files);
    fixture.stdout(&["pull", ID, "--yes"]);
    let snapshot = fixture.dir().join("snapshots").join(COMMIT);
    let weights = std::fs::canonicalize(snapshot.join("model.safetensors")).unwrap();
    let mut bytes = std::fs::read(&weights).unwrap();
    bytes[10_000] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    let page = fixture.stdout(&["pull", ID, "--dry-run"]);
    let words = "damaged   model.safetensors: does not match the hub's hash";
    assert!(page.contains(words) && page.contains("20.00 kB"), "{page}");
    assert_eq!(std::fs::read(&weights).unwrap(), bytes, "nothing was changed");
    let page = fixture.stdout(&["pull", ID, "--yes"]);
    assert!(page.contains("20.00 kB (20,000 bytes) downloaded"), "{page}");
    assert_eq!(std::fs::read(&weights).unwrap(), files[1].bytes());
    for args in [&["pull", ID][..], &["pull", ID, "--check"]] {
        let page = fixture.stdout(args);
        assert!(page.contains("all was there"), "{page}");
    }
}

/// The size of a piece in these tests' downloads, which take seconds.
const PIECE: u64 = 64 << 10;
const N_BYTES: u64 = 4 << 20;

fn slow_fixture() -> PullFixture {
    let config = HubFile::new("config.json", HostedContents::new(b"{}"));
    let fixture = PullFixture::new(&[
        config,
        HubFile::new("m.safetensors", HostedContents::noise(3, N_BYTES)),
    ]);
    fixture.server.faults(|seen, _| match seen.is_cdn {
        true => HubFault::Slow(16 << 10, Duration::from_millis(10)),
        false => HubFault::Nothing,
    });
    fixture
}

const SLOW_PULL: [&str; 7] = ["pull", ID, "--yes", "--connections", "2", "--piece", "64K"];

#[test]
fn a_killed_download_goes_on_where_it_was() {
    let fixture = slow_fixture();
    let mut before = 0;
    for _ in 0..3 {
        let mut child = fixture.start(&SLOW_PULL);
        fixture.wait_for_bytes(before + N_BYTES / 5);
        child.kill().unwrap();
        child.wait().unwrap();
        before = fixture.server.n_bytes();
    }
    assert!(!fixture.dir().join("refs/main").exists());
    fixture.server.faults(|_, _| HubFault::Nothing);
    fixture.stdout(&SLOW_PULL);
    // Each of the three may have lost a piece of each connection, and the bytes in flight.
    let sent = fixture.server.n_bytes();
    let lost = 3 * 2 * (PIECE + (256 << 10));
    assert!(sent <= N_BYTES + lost, "{sent} bytes for {N_BYTES}");
    let path = fixture.dir().join("snapshots").join(COMMIT).join("m.safetensors");
    assert!(std::fs::read(path).unwrap() == HostedContents::noise(3, N_BYTES).bytes());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_download_in_good_order() {
    let fixture = slow_fixture();
    let mut child = fixture.start(&SLOW_PULL);
    fixture.wait_for_bytes(N_BYTES / 4);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let (code, text) = outcome(&mut child);
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("`moeflux pull owner/model` resumes"), "{text}");
    let listed: Value = serde_json::from_str(&fixture.stdout(&["list", "--json"])).unwrap();
    assert!(listed["models"][0]["incomplete_bytes"].as_u64().unwrap() > N_BYTES / 8, "{listed}");
    let page = fixture.stdout(&["pull", ID, "--dry-run", "--piece", "64K"]);
    assert!(page.contains("of it are here"), "{page}");
}

#[test]
fn two_downloads_of_the_same_do_not_harm_each_other() {
    let fixture = slow_fixture();
    let mut children = [0; 2].map(|_| fixture.start(&SLOW_PULL));
    for child in &mut children {
        let (code, text) = outcome(child);
        assert_eq!(code, Some(0), "{text}");
    }
    assert!(fixture.server.n_bytes() < N_BYTES + 10_000, "each byte is fetched once");
    let path = fixture.dir().join("snapshots").join(COMMIT).join("m.safetensors");
    assert!(std::fs::read(path).unwrap() == HostedContents::noise(3, N_BYTES).bytes());
}
