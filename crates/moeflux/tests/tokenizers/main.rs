//! Tokenizers from strangers, and those that are published: a table of hostile files, each of
//! which must end in one line or work, and families' pipelines against the tokenizers library.
//!
//! A program rather than a list of tests, so that `tools/check/tokenizers.sh` can give each file a
//! process of its own with limits of memory and time. Without one of the words below it checks
//! everything in its own process:
//! `--write DIR` (a folder for each case), `--open DIR`, `--families`, `--write-family NAME DIR`,
//! `--encode DIR` (texts as JSON strings, a line each, become lists of ids), `--encode-gguf FILE`,
//! `--time DIR` or `--time FILE`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "it checks, and fails as tests do")]
#![expect(clippy::too_many_lines, reason = "tables")]
#![expect(clippy::print_stdout, reason = "the script that runs this reads its answers")]

mod attacks;
mod cases;
mod families;
mod gguf;
mod probe;
mod tiktoken;

use std::io::BufRead;
use std::path::Path;

use moeflux::provider::text::Tokenizer;
use moeflux_testing::temp_dir::TempDir;

use crate::cases::{Case, Expected};

/// The first thread of a program has 1 MiB on Windows; `moeflux` has as much as this one.
const STACK_BYTES: usize = 8 << 20;

fn main() {
    let running = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap();
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}

fn run() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["--write", dir] => {
            for case in all_cases() {
                let dir = Path::new(dir).join(&case.name);
                std::fs::create_dir(&dir).unwrap();
                case.write(&dir);
            }
        }
        ["--open", dir] => println!("{}", probe::open(Path::new(dir)).unwrap_or_else(|it| it)),
        ["--families"] => families::NAMES.iter().for_each(|name| println!("{name}")),
        ["--write-family", name, dir] => {
            let text = families::family(name).to_string();
            std::fs::write(Path::new(dir).join("tokenizer.json"), text).unwrap();
        }
        ["--encode", dir] => {
            encode_lines(&Tokenizer::open(Path::new(dir), usize::MAX).unwrap());
        }
        ["--encode-gguf", file] => encode_lines(&gguf::open(Path::new(file)).unwrap()),
        ["--time", path] => time(Path::new(path)),
        _ => check_all(),
    }
}

fn all_cases() -> Vec<Case> {
    cases::all().into_iter().chain(attacks::all()).collect()
}

fn check_all() {
    let dir = TempDir::new();
    let cases = all_cases();
    let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "two cases have one name");
    assert!(cases.len() >= 100, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        case.write(dir.path());
        let outcome = probe::open(dir.path());
        match (&case.expected, &outcome) {
            (Expected::Works, Ok(_)) => {}
            (Expected::Refused(part), Err(line)) if line.contains(part) => {
                probe::check_line(dir.path(), line);
            }
            _ => {
                wrong.push(format!("{}: {:?} expected, but {outcome:?}", case.name, case.expected));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    families::check(dir.path());
    let n_odd = families::check_odd(dir.path());
    let (n_pres, n_gguf) = gguf::check(dir.path());
    let n_lines = tiktoken::check(dir.path());
    println!(
        "{} cases, {} families, {n_odd} odd pipelines; GGUF: {n_gguf} cases, {n_pres} pipelines; \
         tiktoken: {n_lines}",
        cases.len(),
        families::NAMES.len()
    );
}

fn encode_lines(tokenizer: &Tokenizer) {
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line.unwrap()).unwrap();
        let tokens = tokenizer.encode(&text).unwrap();
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        println!("{}", serde_json::json!({"ids": ids, "text": tokenizer.decode(&tokens)}));
    }
}

/// How long a folder's tokenizer, or that of a GGUF file, takes to open; the file is in memory.
#[expect(clippy::disallowed_methods, reason = "it measures time for a script, not for a test")]
fn time(path: &Path) {
    let milliseconds = |open: &dyn Fn() -> Tokenizer| {
        let mut all: Vec<u128> = (0..7)
            .map(|_| {
                let start = std::time::Instant::now();
                drop(open());
                start.elapsed().as_millis()
            })
            .collect();
        all.sort_unstable();
        println!("{} ms of 7 times, {} to {}", all[3], all[0], all[6]);
    };
    match path.is_dir() {
        true => milliseconds(&|| Tokenizer::open(path, usize::MAX).unwrap()),
        false => milliseconds(&|| gguf::open(path).unwrap()),
    }
}
