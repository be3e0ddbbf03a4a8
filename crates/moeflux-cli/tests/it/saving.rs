//! Conversations on a drive, as users meet them: where they are saved, when they are not, and the
//! commands that list, check and remove them.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value, json};

use crate::chatting::run;
use crate::serving::{ServerProcess, wait_until_saved};
use crate::support::{check_fails, moeflux, stdout_of};

/// Longer than the shortest conversation that is saved.
const QUESTION: &str = "What does Vec::push do? Tell me about vectors, slices, strings, hash maps, \
    iterators, options, results, boxes, arcs and mutexes, one after the other, and in few words. \
    Then say which of them allocate, which are safe to send to another thread, and why.";

/// Where the program saves conversations if this folder is the user's cache.
fn usual(cache: &Path) -> PathBuf {
    let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { "" };
    cache.join(caches).join("moeflux").join("prefix")
}

fn ask(server: &ServerProcess) -> Value {
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let request = json!({"messages": messages, "max_tokens": 8, "temperature": 0});
    server.json("POST /v1/chat/completions", &request)
}

/// Returns the files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().map(|it| it.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Runs a command below `prefix` that succeeds.
#[track_caller]
fn prefix(command: &str, dir: &Path, more: &[&str]) -> String {
    let args = ["prefix", command, "--cache-dir", dir.to_str().unwrap()];
    stdout_of(&[&args[..], more].concat())
}

#[track_caller]
fn prefix_fails(command: &str, dir: &Path, more: &[&str], words: &[&str]) {
    let args = ["prefix", command, "--cache-dir", dir.to_str().unwrap()];
    check_fails(&[&args[..], more].concat(), words);
}

#[test]
fn saved_conversations_are_listed_checked_and_removed() {
    let root = TempDir::new();
    let dir = root.file("cache");
    for command in ["list", "verify"] {
        assert!(prefix(command, &dir, &[]).starts_with("no conversations in "), "{command}");
    }
    assert!(prefix("prune", &dir, &["--all"]).starts_with("no conversations in "));
    assert!(!dir.exists(), "a folder was made");

    let options = ["--port", "0", "--cache-dir", dir.to_str().unwrap()];
    let server = ServerProcess::start(&options, &[]);
    let n_prompt = ask(&server)["usage"]["prompt_tokens"].as_u64().unwrap();
    let n_objects = wait_until_saved(&dir);
    let table = prefix("list", &dir, &[]);
    let line = table.lines().find(|it| it.contains("  demo-model-")).expect(&table);
    assert!(line.starts_with("without key              1 "), "{table}");
    assert!(line.contains("  just now  "), "{table}");
    let last = table.lines().last().unwrap();
    assert!(last.contains(" in ") && last.contains("--cache-size"), "{table}");
    let found: Value = serde_json::from_str(&prefix("list", &dir, &["--json"])).unwrap();
    let groups = found["models"].as_array().unwrap();
    let sum = |name: &str| groups.iter().map(|it| it[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("n_conversations"), sum("n_files")), (1, n_objects as u64));
    let sizes = files(&dir.join("objects")).into_iter().map(|it| fs::metadata(it).unwrap().len());
    let n_bytes: u64 = sizes.sum();
    assert_eq!((&found["bytes"], sum("bytes")), (&json!(n_bytes), n_bytes));
    let group = groups.iter().find(|it| it["n_conversations"] == 1).unwrap();
    assert!(group["model"].as_str().unwrap().starts_with("demo-model-"), "{found}");
    assert_eq!(group["owner"], Value::Null);
    let n_tokens = group["n_tokens"].as_u64().unwrap();
    assert!((n_prompt..n_prompt + 8).contains(&n_tokens), "{found} after {n_prompt}");
    assert!(prefix("verify", &dir, &[]).contains(" match their checksums"));
    // The server saves there.
    prefix_fails("prune", &dir, &["--all"], &["another process", "end it first"]);
    drop(server);

    // Without a rule nothing is removed, and the rules are named.
    let output = moeflux(&["prefix", "prune", "--cache-dir", dir.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for rule in ["--all", "--unused-for", "--to"] {
        assert!(stderr.contains(rule), "{stderr}");
    }
    for rule in [["--unused-for", "30d"], ["--to", "1G"]] {
        assert!(prefix("prune", &dir, &rule).starts_with("0 files removed"), "{rule:?}");
    }
    let removed = prefix("prune", &dir, &["--all"]);
    assert!(removed.ends_with(" freed, 0 bytes left\n"), "{removed}");
    let mut left: Vec<String> = files(&dir)
        .iter()
        .map(|it| it.strip_prefix(&dir).unwrap().to_str().unwrap().to_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["CACHEDIR.TAG", "lock", "secret", "written"], "what users wrote is gone");
    assert!(prefix("list", &dir, &[]).starts_with("no conversations in "));
}

#[test]
fn damage_is_named_wherever_it_is() {
    let root = TempDir::new();
    let dir = root.file("cache");
    let server = ServerProcess::start(&["--port", "0", "--cache-dir", dir.to_str().unwrap()], &[]);
    ask(&server);
    wait_until_saved(&dir);
    drop(server);
    let is_large = |it: &PathBuf| fs::metadata(it).unwrap().len() > 8192;
    let path = files(&dir.join("objects")).into_iter().find(is_large).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let sound = fs::read(&path).unwrap();
    // In the header, and in what a model keeps.
    for at in [40, sound.len() - 100] {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let before = files(&dir);
        let output = moeflux(&["prefix", "verify", "--cache-dir", dir.to_str().unwrap()]);
        let [stdout, stderr] = [output.stdout, output.stderr].map(|it| {
            let text = String::from_utf8(it).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
            text
        });
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stdout.starts_with(&format!("damaged: {name}: ")), "{at}: {stdout}");
        assert!(stderr.contains("1 file damaged") && stderr.contains("prune --all"), "{stderr}");
        assert_eq!(files(&dir), before, "nothing is moved or removed");
    }
    // Damaged files have what users wrote, too.
    prefix("prune", &dir, &["--all"]);
    assert_eq!(files(&dir.join("objects")).len() + files(&dir.join("damaged")).len(), 0);
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let root = TempDir::new();
    root.write("notes", "mine");
    assert!(prefix("prune", root.path(), &["--all"]).starts_with("no conversations in "));
    assert_eq!(files(root.path()), [root.file("notes")]);
    let file = root.file("notes");
    prefix_fails("list", &file, &[], &["cannot list", "notes"]);
}

#[test]
fn a_server_without_keys_saves_in_the_users_cache() {
    let server = ServerProcess::in_cache(TempDir::new(), &["--port", "0"]);
    let dir = usual(server.cache.path());
    let line = &server.printed_before;
    assert!(line.starts_with(&format!("conversations are saved in {}, up to ", dir.display())));
    assert!(line.ends_with("; --cache-dir none turns this off\n"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    ask(&server);
    assert!(wait_until_saved(&dir) > 0);
}

#[test]
fn keys_and_none_save_nothing() {
    let root = TempDir::new();
    let keys = root.write("keys", "a-key\n");
    for more in [["--api-key-file", keys.to_str().unwrap()], ["--cache-dir", "none"]] {
        let server =
            ServerProcess::in_cache(TempDir::new(), &[&["--port", "0"][..], &more].concat());
        assert_eq!(server.printed_before, "", "{more:?}");
        assert!(!usual(server.cache.path()).exists(), "{more:?}");
    }
    let more = ["--port", "0", "--api-key-file", keys.to_str().unwrap(), "--cache-size", "1G"];
    let server = ServerProcess::in_cache(TempDir::new(), &more);
    let line = "conversations are not saved: with --api-key-file this needs --cache-dir\n";
    assert_eq!(server.printed_before, line);
}

#[test]
fn a_chat_saves_unless_it_keeps_no_history() {
    let cache = TempDir::new();
    let variables = ["XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"].map(|name| (name, cache.path()));
    let lines = format!("{QUESTION}\n");
    let args = ["--temp", "0", "-n", "20"];
    let unsaved = run(&[&args[..], &["--no-history"]].concat(), &variables, &lines);
    assert!(!usual(cache.path()).exists());
    for _ in 0..2 {
        let saved = run(&args, &variables, &lines);
        assert_eq!((saved.stdout, saved.stderr), (unsaved.stdout.clone(), unsaved.stderr.clone()));
        assert!(!files(&usual(cache.path()).join("objects")).is_empty());
    }
}

#[test]
fn a_cache_that_cannot_be_used_is_one_line_and_no_failure() {
    let cache = TempDir::new();
    let dir = usual(cache.path());
    fs::create_dir_all(dir.parent().unwrap()).unwrap();
    fs::write(&dir, "a file").unwrap();
    let variables = ["XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"].map(|name| (name, cache.path()));
    let output = run(&["--temp", "0", "-n", "2"], &variables, "Hi\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let notes: Vec<&str> = stderr.lines().filter(|it| !it.contains("-n limit")).collect();
    assert_eq!(notes.len(), 1, "{stderr}");
    assert!(notes[0].starts_with("note: conversations are not saved: cannot "), "{stderr}");
    assert!(notes[0].ends_with("; --cache-dir names another folder"), "{stderr}");
    let named = ["chat", "--cache-dir", dir.to_str().unwrap()];
    check_fails(&named, &["--cache-dir", "cannot create", "prefix"]);
}

#[test]
fn what_was_warmed_is_not_read_again() {
    let root = TempDir::new();
    let dir = root.file("cache");
    let instructions = "You answer questions about vectors and slices in a few words. ".repeat(9);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages =
        |question: &str| json!([message("system", &instructions), message("user", question)]);
    let request = json!({"messages": messages("What is a slice?"), "max_tokens": 5});
    let text = "A vector is a contiguous growable array of values of one type. ".repeat(9);
    let asked = root.write("asked.json", request.to_string());
    let begun = root.write("begun.txt", &text);
    let short = root.write("short.txt", "A vector");
    let paths = [&asked, &begun, &short].map(|it| it.to_str().unwrap());
    let args = ["prefix", "warm", "--cache-dir", dir.to_str().unwrap(), paths[0], paths[1]];
    let with_short = [&args[..], &[paths[2]]].concat();
    check_fails(&with_short, &["short.txt", "fewer than 64 are not saved"]);
    assert!(!dir.exists(), "it was refused first");
    // The second time, nothing is left to do.
    for _ in 0..2 {
        let printed = stdout_of(&args);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines.len(), 2, "{printed}");
        for (line, path) in lines.iter().zip(paths) {
            let (before, after) = line.rsplit_once(": ").unwrap();
            assert_eq!(before, path);
            assert!(after.ends_with(" tokens are saved"), "{line}");
        }
    }
    let server = ServerProcess::start(&["--port", "0", "--cache-dir", dir.to_str().unwrap()], &[]);
    let read = |path: &str, request: &Value| {
        let usage = server.json(&format!("POST /v1/{path}"), request)["usage"].take();
        let n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        usage["prompt_tokens"].as_u64().unwrap() - n_cached
    };
    // A prompt's last token is always read, and those after its instructions.
    let other = json!({"messages": messages("And what is a vector?"), "max_tokens": 5});
    for request in [request, other] {
        assert!(read("chat/completions", &request) < 30, "{request}");
    }
    let request = json!({"prompt": format!("{text}It has a length."), "max_tokens": 5});
    assert!(read("completions", &request) < 20);
    check_fails(&args, &["another process", "then save"]);
}

#[test]
fn generate_saves_conversations_in_a_folder_that_is_named() {
    let root = TempDir::new();
    let (dir, messages) = (root.file("cache"), root.file("messages.json"));
    let mut history = vec![json!({"role": "user", "content": QUESTION})];
    let mut n_loaded = Vec::new();
    for question in ["And pop?", "And len?"] {
        fs::write(&messages, json!(history).to_string()).unwrap();
        let plain = ["--chat", "--messages", messages.to_str().unwrap(), "--json", "-n", "30"];
        let saving = [&plain[..], &["--cache-dir", dir.to_str().unwrap()]].concat();
        let [answer, saved] = [&plain[..], &saving].map(|args| {
            let line = stdout_of(&[&["generate", "--seed", "3"], args].concat());
            serde_json::from_str::<Value>(&line).unwrap()
        });
        assert_eq!(answer["tokens"], saved["tokens"]);
        n_loaded.push(saved["stats"]["prompt_tokens_loaded"].as_u64().unwrap());
        history.push(json!({"role": "assistant", "content": answer["text"]}));
        history.push(json!({"role": "user", "content": question}));
    }
    // The question and the answer.
    assert!(n_loaded[0] == 0 && n_loaded[1] > 64, "{n_loaded:?}");
    let line = prefix("list", &dir, &[]);
    assert!(line.contains("demo-model"), "{line}");
    let other = root.file("other");
    let output = moeflux(&["generate", "Once", "--cache-dir", other.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("needs --chat"), "{stderr}");
    assert!(!other.exists(), "a folder was made");
}
