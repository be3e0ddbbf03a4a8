//! Metadata that is wrong: each file ends in one line, or works.

use std::path::Path;

use moeflux::provider::format::parse_gguf;
use moeflux::provider::text::text_of_metadata;

use crate::cases::Expected::{self, Refused, Works};
use crate::gguf::file::File;
use crate::gguf::original;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const PRE: &str = "tokenizer.ggml.pre";
const MODEL: &str = "tokenizer.ggml.model";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Most characters of an error after the file's name.
const LINE_CHARS_MAX: usize = 400;

type Case = (&'static str, Expected, File);

/// Opens all files, and returns how many there are.
pub(super) fn check(dir: &Path) -> usize {
    let cases: Vec<Case> = [keys(), lists(), merges(), pieces(), others()].concat();
    // Beside the file there is nothing that could help.
    let path = dir.join("nowhere/model.gguf");
    let mut wrong = Vec::new();
    for (name, expected, file) in &cases {
        let bytes = file.bytes();
        let header = parse_gguf(&bytes, bytes.len() as u64).unwrap();
        let text = text_of_metadata(&path, &header.metadata, None, 1 << 22);
        let opened = text.and_then(|text| {
            text.chat_template()?;
            let tokens = text.tokenizer().encode("hello World 12 <|im_start|> \u{1f600}")?;
            text.prompt("hello")?;
            Ok(text.tokenizer().decode(&tokens))
        });
        let line = opened.as_ref().err().map(ToString::to_string);
        match (expected, &line) {
            (Works, None) => {}
            (Refused(part), Some(line)) if line.contains(part) => {
                let rest = line.strip_prefix(&format!("{}: ", path.display()));
                let rest = rest.expect("a line that begins with its file");
                assert!(!line.contains(char::is_control), "{line:?}");
                assert!(rest.chars().count() <= LINE_CHARS_MAX, "{line}");
            }
            _ => wrong.push(format!("{name}: {expected:?} expected, but {opened:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    cases.len()
}

fn good() -> File {
    File::of_json("qwen2", &original(&[crate::cases::QWEN], (true, false)))
}

/// Bytes and two tokens more, in the order of the alphabet; `more` are text.
fn small(pre: &str, more: &[&str]) -> File {
    let json = original(&[], (false, false));
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<String> =
        vocab.keys().filter(|text| text.chars().nth(1).is_none()).cloned().collect();
    tokens.extend(more.iter().map(|&text| text.to_owned()));
    let types = vec![1; tokens.len()];
    File::new("gpt2", pre).texts(TOKENS, &tokens).integers(TYPES, &types).texts::<&str>(MERGES, &[])
}

fn spaces(n_tokens: usize) -> File {
    let tokens: Vec<String> = (1..=n_tokens).map(|n| "\u{2581}".repeat(n)).collect();
    #[expect(clippy::cast_precision_loss, reason = "few tokens")]
    let scores: Vec<f32> = (0..n_tokens).map(|n| -(n as f32)).collect();
    File::new("llama", "default")
        .texts(TOKENS, &tokens)
        .integers(TYPES, &vec![1; n_tokens])
        .floats(SCORES, &scores)
        .id(UNKNOWN, 0)
}

fn keys() -> Vec<Case> {
    let long = "x".repeat(100_000);
    vec![
        ("good", Works, good()),
        ("no-keys", Refused("has no tokenizer; put the original"), File::default()),
        ("no-model", Refused("has no tokenizer; put"), good().without(MODEL)),
        ("model-id", Refused("an integer, not a string"), good().id(MODEL, 1)),
        ("model-t5", Refused("is `t5`, which is not known (known: gpt2"), good().text(MODEL, "t5")),
        ("model-long", Refused("which is not known"), good().text(MODEL, &long)),
        ("pre-unknown", Refused("is `viking`, which is not known"), good().text(PRE, "viking")),
        ("pre-remedy", Refused("original model's tokenizer.json"), good().text(PRE, "default")),
        ("pre-none", Refused("is `default`, which"), good().without(PRE)),
        ("pre-lines", Refused("is `a\\nb`"), good().text(PRE, "a\nb")),
        ("pre-flag", Refused("a truth value, not a string"), good().flag(PRE, true)),
        ("pre-empty", Refused("is ``, which"), good().text(PRE, "")),
        ("bos-large", Refused("99999, but there are"), good().id(BOS, 99_999)),
        ("bos-none", Works, good().id(BOS, u32::MAX)),
        ("bos-minus", Works, good().integer(BOS, -1)),
        ("bos-negative", Refused("not the id of a token"), good().integer(BOS, -2)),
        ("bos-text", Refused("not the id of a token"), good().text(BOS, "<s>")),
        ("eot-large", Refused("but there are"), good().id("tokenizer.ggml.eot_token_id", 1 << 30)),
        ("add-bos", Refused("not a truth value"), good().id("tokenizer.ggml.add_bos_token", 1)),
    ]
}

fn lists() -> Vec<Case> {
    let twice = |text: &str| {
        let types = vec![1; small("qwen2", &[text, text]).n_tokens()];
        small("qwen2", &[text, text]).integers(TYPES, &types)
    };
    let typed = |text: &str, kind: i32| {
        let file = small("qwen2", &[text]);
        let mut types = vec![1; file.n_tokens()];
        *types.last_mut().unwrap() = kind;
        file.integers(TYPES, &types)
    };
    let n_tokens = good().n_tokens();
    let many: Vec<String> = (0..=1 << 19).map(|n| n.to_string()).collect();
    let long = "x".repeat(5000);
    vec![
        ("tokens-none", Refused("tokens` is missing"), good().without(TOKENS)),
        ("tokens-numbers", Refused("not an array of strings"), good().integers(TOKENS, &[1, 2])),
        ("tokens-text", Refused("a string, not an array"), good().text(TOKENS, "a")),
        (
            "tokens-empty",
            Refused("a vocabulary without tokens"),
            good().texts::<&str>(TOKENS, &[]).integers(TYPES, &[]),
        ),
        ("tokens-twice", Refused("`tokenizer.ggml.tokens`: one text has ids"), twice("zz")),
        ("tokens-long", Refused("5000 bytes; the limits"), small("qwen2", &[&long])),
        (
            "tokens-many",
            Refused("more than 524288 tokens"),
            good().texts(TOKENS, &many).integers(TYPES, &vec![1; many.len()]),
        ),
        ("token-without-text", Works, twice("")),
        ("token-padding", Works, typed("[PAD256]", 4)),
        ("types-none", Refused("token_type` is missing"), good().without(TYPES)),
        ("types-short", Refused("3 values for"), good().integers(TYPES, &[1, 1, 1])),
        ("types-long", Refused("values for"), good().integers(TYPES, &vec![1; n_tokens + 1])),
        ("types-texts", Refused("not an array of integers"), good().texts(TYPES, &["1"])),
        ("types-floats", Refused("not an array of integers"), good().floats(TYPES, &[1.0])),
        ("type-0", Refused("has type 0; types 1 to 6"), typed("zz", 0)),
        ("type-7", Refused("has type 7"), typed("zz", 7)),
        ("type-negative", Refused("has type -1"), typed("zz", -1)),
        ("type-unused", Works, typed("zz", 5)),
        ("type-unknown", Works, typed("zz", 2)),
        ("type-letter", Works, typed("z z", 3)),
    ]
}

fn merges() -> Vec<Case> {
    let with = |merges: &[&str]| small("qwen2", &["he"]).texts(MERGES, merges);
    let a = "a".repeat(2000);
    let long: Vec<String> = (2..2000).map(|n| a[..n].to_owned()).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    vec![
        ("merges-none", Refused("merges` is missing"), good().without(MERGES)),
        ("merges-numbers", Refused("not an array of strings"), good().integers(MERGES, &[1])),
        ("merges-empty", Works, with(&[])),
        ("merges-empty-numbers", Works, small("qwen2", &[]).integers(MERGES, &[])),
        ("merge-good", Works, with(&["h e"])),
        ("merge-one", Refused("merge 1, `he`, does not have two tokens"), with(&["h e", "he"])),
        ("merge-three", Refused("merge 0, `h e l`, does not have two tokens"), with(&["h e l"])),
        ("merge-nothing", Refused("does not have two tokens"), with(&[""])),
        ("merge-unknown-part", Refused("`tokenizer.ggml.merges`: "), with(&["he zz"])),
        ("merge-unknown-whole", Refused("`tokenizer.ggml.merges`: "), with(&["h h"])),
        ("merge-long", Refused("merge 1 makes a token"), with(&["hehe hehe"])),
        ("ranked-without-merges", Works, small("kimi-k2", &["he"]).without(MERGES)),
        (
            "ranked-quadratic",
            Refused("too long to split at every position"),
            small("kimi-k2", &long),
        ),
        ("ranked-many", Works, small("kimi-k2", &long[..300])),
        ("ignores-merges", Works, small("glm4", &["he"]).texts(MERGES, &["h e"])),
    ]
}

fn pieces() -> Vec<Case> {
    let pieces = || File::of_pieces(&crate::families::family("mixtral"));
    vec![
        ("pieces", Works, pieces()),
        ("pieces-no-space", Works, pieces().flag("tokenizer.ggml.add_space_prefix", false)),
        ("scores-none", Refused("scores` is missing"), pieces().without(SCORES)),
        ("scores-short", Refused("1 values for"), pieces().floats(SCORES, &[0.0])),
        ("scores-integers", Refused("not an array of numbers"), pieces().integers(SCORES, &[1])),
        (
            "scores-not-numbers",
            Works,
            pieces().floats(SCORES, &vec![f32::NAN; pieces().n_tokens()]),
        ),
        ("unknown-none", Works, pieces().without(UNKNOWN)),
        ("unknown-no-bytes", Refused("`byte_fallback` without"), spaces(3).without(UNKNOWN)),
        (
            "spaces-removed",
            Refused("true, which is not supported"),
            pieces().flag("tokenizer.ggml.remove_extra_whitespaces", true),
        ),
        ("spaces-quadratic", Refused("too long to split at every position"), spaces(700)),
        ("spaces", Works, spaces(100)),
    ]
}

fn others() -> Vec<Case> {
    let long = "x".repeat((1 << 20) + 1);
    vec![
        ("template", Works, good().text(TEMPLATE, "{{ messages[0].content }}")),
        ("template-number", Refused("an integer, not a string"), good().id(TEMPLATE, 1)),
        ("template-wrong", Refused("line 1"), good().text(TEMPLATE, "{% if %}")),
        ("template-long", Refused("the limit is 1048576"), good().text(TEMPLATE, &long)),
        (
            "template-of-tools-alone",
            Refused("no chat template is named `default`"),
            good().text("tokenizer.chat_template.tool_use", "x"),
        ),
        ("sampling", Works, good().float("general.sampling.temp", 0.6)),
        (
            "sampling-text",
            Refused("`general.sampling.temp`: a string, not a number"),
            good().text("general.sampling.temp", "hot"),
        ),
        ("sampling-range", Refused("top_p"), good().float("general.sampling.top_p", -3.0)),
        (
            "sampling-not-a-number",
            Refused("`general.sampling.temp`: NaN"),
            good().float("general.sampling.temp", f32::NAN),
        ),
    ]
}
