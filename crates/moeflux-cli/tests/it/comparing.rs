//! `eval --compare-model`: compares its numbers with sums over the output of `logits`, and what it
//! goes on from with what an uninterrupted run writes.

use std::path::Path;

use serde_json::Value;

use crate::support::{ModelDir, check_fails, golden, moeflux, read_npy, stdout_of};

const VOCAB: usize = 256;

/// With one token per byte and windows of 9 tokens, 7 windows and 3.
const TEXTS: [&str; 2] = [
    "A vector is a contiguous growable array type, on the heap.",
    "h\u{e9}llo w\u{f6}rld \u{20ac} again.",
];
const CONTEXT: usize = 9;
const N_WINDOWS: usize = 10;
const N_PREDICTED: usize = 58 + 24 - N_WINDOWS;

/// Bytes of all logits in a work file, and of all scores. Each window has a checksum.
const LOGITS_BYTES: usize = N_PREDICTED * VOCAB * 4 + N_WINDOWS * 8;
const SCORES_BYTES: usize = N_PREDICTED * 25 + N_WINDOWS * 8;

/// Two models of one tokenizer, and the texts.
struct Pair {
    tested: ModelDir,
    other: ModelDir,
}

impl Pair {
    /// A model in four bits, and the same in f32.
    fn new() -> Self {
        let (tested, other) = (ModelDir::new(), ModelDir::of_bytes_case());
        let [from, to] = [other.path(), &tested.file("model")].map(text);
        stdout_of(&["pack", &from, &to, "--bits", "4", "--group", "32"]);
        for (idx, text) in TEXTS.iter().enumerate() {
            std::fs::write(tested.file(&format!("text-{idx}")), text).unwrap();
        }
        Self { tested, other }
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let [model, first, second] =
            ["model", "text-0", "text-1"].map(|name| text(&self.tested.file(name)));
        let (other, context) = (text(self.other.path()), CONTEXT.to_string());
        let args =
            ["eval", "--json", "--model", &model, "--compare-model", &other, "--file", &first];
        let args = [&args[..], &["--file", &second, "--context", &context], more].concat();
        args.into_iter().map(str::to_owned).collect()
    }

    /// Runs the command with this work file. Returns its output.
    fn eval(&self, base: &Path, more: &[&str]) -> String {
        let args = self.args(&[&["--compare-base", &text(base)], more].concat());
        stdout_of(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    fn check_refused(&self, base: &Path, more: &[&str], words: &[&str]) {
        let args = self.args(&[&["--compare-base", &text(base)], more].concat());
        check_fails(&args.iter().map(String::as_str).collect::<Vec<_>>(), words);
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The logits of a window.
fn logits(model: &Path, window: &[u8], scratch: &ModelDir) -> Vec<Vec<f32>> {
    let tokens: Vec<String> = window.iter().map(u8::to_string).collect();
    let out = scratch.file("window.npy");
    let (model, tokens) = (text(model), tokens.join(","));
    stdout_of(&["logits", "--model", &model, "--tokens", &tokens, "--out", &text(&out)]);
    read_npy(&out, VOCAB)
}

/// Sums over the predicted tokens of a text: their number, the nats of the tested and of the other
/// model, KL(other || tested), and how often the most probable token is the same.
type Sums = (f64, f64, f64, f64, f64);

fn sums(pair: &Pair, text: &str) -> Sums {
    let mut sums = (0.0, 0.0, 0.0, 0.0, 0.0);
    for window in text.as_bytes().chunks(CONTEXT).filter(|window| window.len() > 1) {
        let tested = logits(&pair.tested.file("model"), window, &pair.tested);
        let other = logits(pair.other.path(), window, &pair.tested);
        for (at, next) in window.iter().enumerate().skip(1) {
            let [q, p] = [&tested, &other].map(|rows| probabilities(&rows[at - 1]));
            sums.0 += 1.0;
            sums.1 -= q[usize::from(*next)].ln();
            sums.2 -= p[usize::from(*next)].ln();
            sums.3 += p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
            sums.4 += f64::from(u8::from(best(&p) == best(&q)));
        }
    }
    sums
}

fn probabilities(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit).exp() / sum).collect()
}

fn best(probabilities: &[f64]) -> usize {
    let mut ids: Vec<usize> = (0..probabilities.len()).collect();
    ids.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
    ids[0]
}

#[track_caller]
fn check(found: &Value, (n, tested, other, kl, n_same): Sums) {
    let close = |key: &str, expected: f64| {
        let value = found[key].as_f64().unwrap();
        assert!(
            (value - expected).abs() < 1e-9 * expected.abs().max(1.0),
            "{key}: {expected}, {found}"
        );
    };
    close("n_predicted", n);
    close("perplexity", (tested / n).exp());
    close("other_perplexity", (other / n).exp());
    close("mean_kl", kl / n);
    close("top1_agreement", n_same / n);
}

#[test]
fn numbers_are_those_of_both_models_logits() {
    let pair = Pair::new();
    let found = pair.eval(&pair.tested.file("base"), &[]);
    let found: Value = serde_json::from_str(&found).unwrap();
    let expected = TEXTS.map(|text| sums(&pair, text));
    let [first, second] = expected;
    assert!(first.3 > 1e-3 && first.4 < first.0, "the two differ: {first:?}");
    check(&found["texts"][0], first);
    check(&found["texts"][1], second);
    let total = (first.0 + second.0, first.1 + second.1, first.2 + second.2);
    check(&found, (total.0, total.1, total.2, first.3 + second.3, first.4 + second.4));

    // The other way round, the divergence is another one.
    let swapped = Pair { tested: ModelDir::new(), other: ModelDir::new() };
    for (idx, text) in TEXTS.iter().enumerate() {
        std::fs::write(swapped.tested.file(&format!("text-{idx}")), text).unwrap();
    }
    copy(pair.other.path(), &swapped.tested.file("model"));
    copy(&pair.tested.file("model"), swapped.other.path());
    let reverse = swapped.eval(&swapped.tested.file("base"), &["--chunk", "3"]);
    let reverse: Value = serde_json::from_str(&reverse).unwrap();
    assert_eq!(reverse["perplexity"], found["other_perplexity"]);
    assert_eq!(reverse["top1_agreement"], found["top1_agreement"]);
    assert_ne!(reverse["mean_kl"], found["mean_kl"]);
    check(&reverse["texts"][0], sums(&swapped, TEXTS[0]));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_model_is_equal_to_itself() {
    let dir = ModelDir::of_bytes_case();
    std::fs::write(dir.file("text"), TEXTS[0]).unwrap();
    let (model, file) = (text(dir.path()), text(&dir.file("text")));
    let args = ["eval", "--model", &model, "--compare-model", &model, "--file", &file];
    let found: Value =
        serde_json::from_str(&stdout_of(&[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!((&found["mean_kl"], &found["kl_99"]), (&0.0.into(), &0.0.into()));
    assert_eq!(found["top1_agreement"], 1.0);
    assert_eq!(found["perplexity"], found["other_perplexity"]);
    let alone = stdout_of(&["eval", "--json", "--model", &model, "--file", &file]);
    let alone: Value = serde_json::from_str(&alone).unwrap();
    assert_eq!(found["perplexity"], alone["perplexity"]);
    let table = stdout_of(&args);
    assert!(table.contains("top-1 the same  100.00 %\nmean KL         0.000e0"), "{table}");
    // Without --compare-base, the work file is removed.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let caches = [cache.to_owned(), cache.join(".cache"), cache.join("Library/Caches")];
    let left = caches.iter().filter_map(|it| std::fs::read_dir(it.join("moeflux")).ok()).flatten();
    let mut names = left.map(|it| it.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.find(|name| name.ends_with(".logits")), None);
}

#[test]
fn an_interrupted_comparison_goes_on_and_ends_the_same() {
    let pair = Pair::new();
    let whole = pair.tested.file("whole");
    let expected = pair.eval(&whole, &[]);
    let bytes = std::fs::read(&whole).unwrap();
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert_eq!(bytes.len(), line + LOGITS_BYTES + SCORES_BYTES);
    let window = (CONTEXT - 1) * VOCAB * 4 + 8;
    let logits = line + LOGITS_BYTES;
    let base = pair.tested.file("base");
    let mut lens =
        vec![0, line, line + 1, line + window - 1, line + window, line + 3 * window + 500];
    lens.extend([logits - 1, logits, logits + 100, bytes.len() - 1]);
    lens.push(bytes.len());
    for len in lens {
        std::fs::write(&base, &bytes[..len]).unwrap();
        assert_eq!(pair.eval(&base, &[]), expected, "{len} of {} bytes", bytes.len());
        assert!(std::fs::read(&base).unwrap() == bytes, "{len} of {} bytes", bytes.len());
    }
    // The logits of the other model serve for a third one, without being computed again.
    let third = pair.tested.file("third");
    stdout_of(&["pack", &text(pair.other.path()), &text(&third), "--bits", "8"]);
    let model = ["--model", &text(&third)];
    let of_third = pair.eval(&base, &model);
    assert_ne!(of_third, expected);
    assert_eq!(of_third, pair.eval(&pair.tested.file("anew"), &model));
    assert!(std::fs::read(&base).unwrap()[..logits] == bytes[..logits]);
    assert_eq!(pair.eval(&base, &[]), expected);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_windows_that_are_whole() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};

    let pair = Pair::new();
    std::fs::write(pair.tested.file("text-0"), TEXTS[0].repeat(60)).unwrap();
    let (base, whole) = (pair.tested.file("base"), pair.tested.file("whole"));
    let args = pair.args(&["--compare-base", &text(&base)]);
    let mut eval = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    eval.args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = eval.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut printed = String::new();
    while !printed.contains("will have the logits") {
        assert!(stderr.read_line(&mut printed).unwrap() > 0, "{printed}");
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    stderr.read_to_string(&mut printed).unwrap();
    assert!(printed.contains("interrupted"), "{printed}");
    assert_eq!(pair.eval(&base, &[]), pair.eval(&whole, &[]));
    assert!(std::fs::read(&base).unwrap() == std::fs::read(&whole).unwrap());
}

#[test]
fn damaged_and_foreign_files_are_refused() {
    let pair = Pair::new();
    let base = pair.tested.file("base");
    let expected = pair.eval(&base, &[]);
    let bytes = std::fs::read(&base).unwrap();
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // What follows the logits is computed again, so that the damage is met.
    let logits = &bytes[..bytes.len() - SCORES_BYTES];
    let damaged = |at: usize| {
        let mut damaged = logits.to_vec();
        damaged[at] ^= 4;
        std::fs::write(&base, damaged).unwrap();
    };
    for at in [line, line + 3, line + 4 * VOCAB * 4, line + 8 * VOCAB * 4 + 1, logits.len() - 1] {
        damaged(at);
        pair.check_refused(&base, &[], &["is damaged: the checksum of window "]);
    }
    for at in 0..line {
        damaged(at);
        pair.check_refused(&base, &[], &[&text(&base)]);
    }
    // A score that was damaged is computed again.
    for at in [logits.len(), logits.len() + 30, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        std::fs::write(&base, damaged).unwrap();
        assert_eq!(pair.eval(&base, &[]), expected);
        assert!(std::fs::read(&base).unwrap() == bytes);
    }
    for (more, words) in [
        (&["--limit", "20"], "other texts or windows"),
        (&["--context", "8"], "other texts or windows"),
        (&["--stride", "4"], "other texts or windows"),
        (&["--backend", "reference"], "another backend or arithmetic"),
        (&["--kv-bits", "8"], "another backend or arithmetic"),
        (&["--compare-model", &text(&pair.tested.file("model"))], "the logits of another model"),
    ] {
        pair.check_refused(&base, more, &[words]);
    }
    for foreign in [&b"{}\n"[..], b"text", b"\0\xff"] {
        std::fs::write(&base, foreign).unwrap();
        pair.check_refused(&base, &[], &["is not a file of `moeflux eval --compare-base`"]);
        assert!(std::fs::read(&base).unwrap() == foreign, "it is left as it was");
    }
    pair.check_refused(&pair.tested.file("nothing/base"), &[], &["nothing"]);
}

#[test]
fn models_of_other_tokens_are_refused() {
    let pair = Pair::new();
    let base = pair.tested.file("base");
    let small = golden("mlx-qwen3_moe-q5-g32-terse");
    pair.check_refused(
        &base,
        &["--compare-model", &text(&small)],
        &["vocabularies of 256 and 160 tokens", "the same tokenizer"],
    );
    let swapped = ModelDir::of_bytes_case();
    swapped.edit_json("tokenizer.json", |tokenizer| {
        let vocab = &mut tokenizer["model"]["vocab"];
        let (a, c) = (vocab["a"].clone(), vocab["c"].clone());
        (vocab["a"], vocab["c"]) = (c, a);
    });
    let places = ["text-0", "predicted token 3 is 99 in one and 97 in the other"];
    pair.check_refused(&base, &["--compare-model", &text(swapped.path())], &places);
    let begun = ModelDir::of_bytes_case();
    let config = r#"{"add_bos_token": true, "bos_token": "a"}"#;
    std::fs::write(begun.file("tokenizer_config.json"), config).unwrap();
    let places = ["text-0", "different tokens"];
    pair.check_refused(&base, &["--compare-model", &text(begun.path())], &places);
    assert!(!base.exists());
    let usage = moeflux(&["eval", "--file", "x", "--compare-base", "y"]);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn several_texts_have_results_of_their_own() {
    let dir = ModelDir::of_bytes_case();
    let model = text(dir.path());
    let files = [0, 1].map(|idx| text(&dir.file(&format!("text-{idx}"))));
    let alone = [0, 1].map(|idx| {
        std::fs::write(&files[idx], TEXTS[idx]).unwrap();
        let json = stdout_of(&["eval", "--json", "--model", &model, "--file", &files[idx]]);
        serde_json::from_str::<Value>(&json).unwrap()
    });
    let args = ["eval", "--model", &model, "--file", &files[0], "--file", &files[1]];
    let both = stdout_of(&[&args[..], &["--json"]].concat());
    let both: Value = serde_json::from_str(&both).unwrap();
    for idx in [0, 1] {
        assert_eq!(both["texts"][idx], alone[idx]["texts"][0]);
        assert_eq!(both["texts"][idx]["perplexity"], alone[idx]["perplexity"]);
    }
    assert_eq!(both["n_predicted"], TEXTS[0].len() + TEXTS[1].len() - 2);
    let table = stdout_of(&args);
    assert_eq!(table.lines().filter(|line| line.contains("text-")).count(), 2, "{table}");
}
