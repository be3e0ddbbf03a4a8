//! `--trace` writes the chosen experts, and `replay` reads them.

use serde_json::Value;

use crate::support::{ModelDir, check_fails, golden, stdout_of};

/// Two layers of eight experts, two of each layer for a token.
const CASE: &str = "mlx-qwen3_moe-q4-g32-bf16";

#[test]
fn prompts_and_answers_are_counted_separately() {
    let (model, dir) = (golden(CASE), ModelDir::new());
    let trace = dir.file("routes");
    let (model, trace) = (model.to_str().unwrap(), trace.to_str().unwrap());
    // One run more, which does not count.
    let tokens = ["--prompt-tokens", "9", "--gen-tokens", "3", "--repeat", "1"];
    stdout_of(&[&["bench", "--model", model, "--trace", trace], &tokens[..]].concat());
    let replayed = stdout_of(&["replay", trace, "--slots", "16", "--json"]);
    let result: Value = serde_json::from_str(&replayed).unwrap();
    assert_eq!(result["n_prefill_tokens"], 2 * 9, "{result}");
    assert_eq!(result["n_decode_tokens"], 2 * 3, "{result}");
    // With room for all, each expert is read once at most, and found from then on.
    let point = &result["curves"][0]["points"][0];
    let count = |part: &str, what: &str| point[part][what].as_u64().unwrap();
    assert_eq!(count("decode", "n_hits") + count("decode", "n_misses"), 2 * 3 * 4, "{result}");
    let n_misses = count("prefill", "n_misses") + count("decode", "n_misses");
    assert!((4..=16).contains(&n_misses), "{result}");
}

#[test]
fn a_place_that_cannot_be_written_is_refused() {
    let model = golden(CASE);
    let trace = "/nonexistent/routes";
    check_fails(
        &["bench", "--model", model.to_str().unwrap(), "--trace", trace],
        &["create", trace],
    );
}
