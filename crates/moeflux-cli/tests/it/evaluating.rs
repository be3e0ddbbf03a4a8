//! Compares `eval` with numbers computed here from the output of `logits`.

use serde_json::Value;

use crate::support::{ModelDir, check_fails, read_npy, stdout_of};

const VOCAB: usize = 256;

/// A text whose characters of 2, 3 and 4 bytes are cut by windows.
const TEXT: &str = "h\u{e9}llo w\u{f6}rld \u{20ac} \u{1f600}!";

/// Returns the nats of all tokens of a window from index `first` on.
fn nats(dir: &ModelDir, window: &[u8], first: usize) -> f64 {
    let list: Vec<String> = window.iter().map(u8::to_string).collect();
    let out = dir.file("window.npy");
    let (model, out_name) = (dir.path().to_str().unwrap(), out.to_str().unwrap());
    stdout_of(&["logits", "--model", model, "--tokens", &list.join(","), "--out", out_name]);
    let rows = read_npy(&out, VOCAB);
    let predicted = (first..window.len()).map(|at| {
        let row = &rows[at - 1];
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[usize::from(window[at])])
    });
    predicted.sum()
}

fn eval(dir: &ModelDir, more: &[&str]) -> Value {
    std::fs::write(dir.file("text"), TEXT).unwrap();
    let (model, text) = (dir.path().to_str().unwrap().to_owned(), dir.file("text"));
    let args = ["eval", "--json", "--model", &model, "--file", text.to_str().unwrap()];
    serde_json::from_str(&stdout_of(&[&args[..], more].concat())).unwrap()
}

#[track_caller]
fn check(result: &Value, n_predicted: usize, nats: f64) {
    assert_eq!(result["n_predicted"], n_predicted);
    assert_eq!(result["n_bytes"], n_predicted, "a token is a byte: {result}");
    let n = f64::from(u32::try_from(n_predicted).unwrap());
    let perplexity = result["perplexity"].as_f64().unwrap();
    assert!((perplexity.ln() - nats / n).abs() < 1e-9, "{result}");
    let bits_per_byte = result["bits_per_byte"].as_f64().unwrap();
    assert!((bits_per_byte - nats / n / std::f64::consts::LN_2).abs() < 1e-9, "{result}");
}

#[test]
fn numbers_are_those_of_the_logits() {
    let dir = ModelDir::of_bytes_case();
    let bytes = TEXT.as_bytes();
    let result = eval(&dir, &[]);
    assert_eq!(result["window_tokens"], 2048);
    check(&result, bytes.len() - 1, nats(&dir, bytes, 1));
    // A limit inside of a character.
    check(&eval(&dir, &["--limit", "2"]), 1, nats(&dir, &bytes[..2], 1));

    let windows: Vec<&[u8]> = bytes.chunks(5).filter(|window| window.len() > 1).collect();
    let expected = windows.iter().map(|window| nats(&dir, window, 1)).sum();
    let n_predicted = windows.iter().map(|window| window.len() - 1).sum();
    check(&eval(&dir, &["--context", "5"]), n_predicted, expected);
}

#[test]
fn the_start_token_begins_each_window_and_is_not_scored() {
    let dir = ModelDir::of_bytes_case();
    let config = r#"{"add_bos_token": true, "bos_token": "a"}"#;
    std::fs::write(dir.file("tokenizer_config.json"), config).unwrap();
    let windows = TEXT.as_bytes().chunks(4).map(|part| [b"a", part].concat());
    let expected = windows.map(|window| nats(&dir, &window, 1)).sum();
    check(&eval(&dir, &["--context", "5"]), TEXT.len(), expected);
}

#[test]
fn overlapping_windows_score_each_token_once_with_more_context() {
    let dir = ModelDir::of_bytes_case();
    let bytes = TEXT.as_bytes();
    let result = eval(&dir, &["--context", "8", "--stride", "3"]);
    assert_eq!((&result["window_tokens"], &result["stride_tokens"]), (&8.into(), &3.into()));
    let mut expected = nats(&dir, &bytes[..8], 1);
    let mut start = 3;
    while start + 5 < bytes.len() {
        expected += nats(&dir, &bytes[start..bytes.len().min(start + 8)], 5);
        start += 3;
    }
    check(&result, bytes.len() - 1, expected);
}

#[test]
fn documents_are_scored_alone_with_their_ends() {
    let dir = ModelDir::of_bytes_case();
    let documents = TEXT.as_bytes().split_inclusive(|byte| *byte == b'w');
    let windows: Vec<_> = documents.map(|document| [b"w", document].concat()).collect();
    assert_eq!(windows.len(), 2);
    let expected: f64 = windows.iter().map(|window| nats(&dir, window, 1)).sum();
    let mut result = eval(&dir, &["--separator", "w"]);
    assert_eq!((&result["n_documents"], &result["n_bytes"]), (&2.into(), &(TEXT.len() - 1).into()));
    let per_byte = expected / f64::from(u32::try_from(TEXT.len() - 1).unwrap());
    let bits_per_byte = result["bits_per_byte"].as_f64().unwrap();
    assert!((bits_per_byte - per_byte / std::f64::consts::LN_2).abs() < 1e-9, "{result}");
    // Only the bytes leave the end out.
    result["n_bytes"] = TEXT.len().into();
    result["bits_per_byte"] = (bits_per_byte * (TEXT.len() - 1) as f64 / TEXT.len() as f64).into();
    check(&result, TEXT.len(), expected);
}

#[test]
fn backends_agree_and_chunks_change_nothing() {
    let dir = ModelDir::of_bytes_case();
    let alone = eval(&dir, &["--precise"]);
    for chunk in ["1", "3", "64"] {
        let both = eval(&dir, &["--precise", "--compare-backend", "reference", "--chunk", chunk]);
        assert_eq!(both["perplexity"], alone["perplexity"]);
        assert_eq!(both["top1_agreement"], 1.0);
        assert!(both["mean_kl"].as_f64().unwrap().abs() < 1e-8, "{both}");
    }
}

#[test]
fn a_text_without_predictions_is_refused() {
    let dir = ModelDir::of_bytes_case();
    let (model, text) = (dir.path().to_str().unwrap(), dir.file("text"));
    let args = ["eval", "--model", model, "--file", text.to_str().unwrap()];
    std::fs::write(&text, "x").unwrap();
    check_fails(&args, &["tokens: 1", "at least 2"]);
    std::fs::write(&text, b"x\xff").unwrap();
    check_fails(&args, &["not UTF-8", "at byte 1"]);
}
