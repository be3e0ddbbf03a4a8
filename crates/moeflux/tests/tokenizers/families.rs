//! Pipelines shaped as the families' published files have them, on a vocabulary of real text (that
//! of the model in the box), against the tokenizers library on the same file.
//!
//! **Invariant:** for any text, ids and decoded text are those of the library.

use std::path::Path;

use moeflux::provider::ids::TokenId;
use moeflux::provider::text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::cases::{QWEN, added, replace, split};

pub(crate) const NAMES: [&str; 14] = [
    "qwen3",
    "qwen3.5",
    "deepseek-v3",
    "deepseek-v2",
    "glm-4.5",
    "kimi-k2",
    "gpt-oss",
    "mixtral",
    "mixtral-metaspace",
    "olmoe",
    "olmoe-digits",
    "minimax",
    "llama3",
    "tiktoken",
];

pub(crate) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
pub(crate) const QWEN3_5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
pub(crate) const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|",
    r"\s+(?!\S)|\s+"
);
const KIMI: &str = concat!(
    r"[\p{Han}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TIKTOKEN: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);
pub(crate) const DEEPSEEK: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|",
    r"\s+(?!\S)|\s+"
);
pub(crate) const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(crate) const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";

/// A family's `tokenizer.json`.
pub(crate) fn family(name: &str) -> Value {
    let bytes = |adds: bool, splits: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": adds,
        "trim_offsets": true, "use_regex": splits})
    };
    let list = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let digits = |alone: bool| json!({"type": "Digits", "individual_digits": alone});
    let plain = bytes(false, false);
    let (pre_tokenizer, normalizer) = match name {
        "qwen3" => (list(vec![split(QWEN), plain]), json!({"type": "NFC"})),
        "qwen3.5" => (list(vec![split(QWEN3_5), plain]), json!({"type": "NFC"})),
        "deepseek-v3" => {
            let splits = [r"\p{N}{1,3}", CJK, DEEPSEEK].map(split).into_iter();
            let none = json!({"type": "Sequence", "normalizers": []});
            (list(splits.chain([plain]).collect()), none)
        }
        "deepseek-v2" => {
            let letters = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+";
            let signs = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";
            let mut steps: Vec<Value> =
                ["[\r\n]", letters, signs, r"\s+$", "[一-龥ࠀ-一가-퟿]+"].map(split).to_vec();
            steps.extend([digits(true), plain]);
            (list(steps), json!({"type": "Sequence", "normalizers": []}))
        }
        "glm-4.5" | "llama3" | "minimax" => (list(vec![split(LLAMA3), plain]), Value::Null),
        "kimi-k2" => (list(vec![split(KIMI), plain]), Value::Null),
        "gpt-oss" => (list(vec![split(O200K), plain]), Value::Null),
        "tiktoken" => (list(vec![split(TIKTOKEN), plain]), Value::Null),
        "olmoe" => (bytes(false, true), json!({"type": "NFC"})),
        "olmoe-digits" => (list(vec![digits(true), bytes(true, true)]), json!({"type": "NFKC"})),
        "mixtral" | "mixtral-metaspace" => return pieces(name),
        other => panic!("no family {other}"),
    };
    let mut json = in_the_box();
    json["pre_tokenizer"] = pre_tokenizer;
    json["normalizer"] = normalizer;
    json["model"]["ignore_merges"] = json!(matches!(name, "llama3" | "gpt-oss"));
    if matches!(name, "llama3" | "deepseek-v3") {
        let template = template("<|im_start|>", 8184);
        json["post_processor"] = json!({"type": "Sequence", "processors":
            [bytes(true, true), template]});
    }
    if name == "olmoe" {
        // Runs of spaces, as GPT-NeoX adds them.
        for (id, n_spaces) in (8192..).zip([24, 8, 4]) {
            let mut token = added(id, &" ".repeat(n_spaces));
            (token["normalized"], token["special"]) = (json!(true), json!(false));
            json["added_tokens"].as_array_mut().unwrap().push(token);
        }
    }
    json
}

fn in_the_box() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../moeflux-demo/model/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn template(text: &str, id: u32) -> Value {
    json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": text, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}}})
}

/// A sentencepiece vocabulary, as converters write it: a token for each byte, then characters and
/// the results of the demo model's merges of ASCII.
fn pieces(name: &str) -> Value {
    let source = in_the_box();
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>"));
    let characters = (' '..='~').chain("▁éÉü語日本\n".chars()).map(String::from);
    let mut vocab = Map::new();
    for text in special.into_iter().chain(bytes).chain(characters) {
        let id = vocab.len();
        vocab.insert(text, json!(id));
    }
    let mut merges = Vec::new();
    for merge in source["model"]["merges"].as_array().unwrap() {
        let side = |place: usize| merge[place].as_str().unwrap().replace('Ġ', "▁");
        let (left, right) = (side(0), side(1));
        let is_known = vocab.contains_key(&left) && vocab.contains_key(&right);
        if is_known && !(format!("{left}{right}")).contains(|it: char| !it.is_ascii() && it != '▁')
        {
            let id = vocab.len();
            vocab.entry(format!("{left}{right}")).or_insert(json!(id));
            merges.push(json!(format!("{left} {right}")));
        }
    }
    let mut json = source;
    json["added_tokens"] = json!([added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]);
    json["model"] = json!({"type": "BPE", "dropout": null, "unk_token": "<unk>",
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
        "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": merges});
    json["post_processor"] = template("<s>", 1);
    json["pre_tokenizer"] = Value::Null;
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]});
    if name == "mixtral-metaspace" {
        json["normalizer"] = Value::Null;
        json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁",
            "prepend_scheme": "first", "split": false});
    }
    json["decoder"] = json!({"type": "Sequence", "decoders": [replace("▁", " "),
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    json
}

/// Compares all families with the library.
pub(crate) fn check(dir: &Path) {
    for name in NAMES {
        let mut json = family(name);
        let theirs = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        // Settings of training, and of batches, change nothing.
        json["model"]["dropout"] = json!(0.5);
        json["truncation"] = json!({"direction": "Right", "max_length": 3,
            "strategy": "LongestFirst", "stride": 0});
        std::fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
        std::fs::write(dir.join("tokenizer_config.json"), "{}").unwrap();
        let ours = Tokenizer::open(dir, usize::MAX).unwrap();
        for text in texts() {
            let encode = |adds| theirs.encode_fast(text.as_str(), adds).unwrap().get_ids().to_vec();
            let ids = |tokens: Vec<TokenId>| tokens.iter().map(|it| it.0).collect::<Vec<_>>();
            assert_eq!(ids(ours.encode(&text).unwrap()), encode(false), "{name} {text:?}");
            assert_eq!(ids(ours.encode_prompt(&text).unwrap()), encode(true), "{name} {text:?}");
            let tokens: Vec<TokenId> = encode(true).into_iter().map(TokenId).collect();
            assert_eq!(
                ours.decode(&tokens),
                theirs.decode(&encode(true), false).unwrap(),
                "{name}"
            );
        }
    }
}

pub(crate) fn texts() -> Vec<String> {
    let short = [
        "",
        " ",
        "Hello, world!",
        "It's 12  spaces,\n\n \tand 語 ÉÀ! ",
        "I'LL SAY  'tis\r\n\r\n x",
        "<|im_start|>user\nWhat is 3.14159 * 1000000?<|im_end|>\n",
        "<s>a</s> b<unk>c",
        "camelCase HTTPServer XMLñandÉcole",
        "日本語のテキストとカタカナ、漢字。한국어 текст",
        "e\u{301}\u{327} नमस्ते ภาษาไทย \u{fb01}",
        "😀👍🏽 👨‍👩‍👧 $€£ /*//**/#define _x_",
        "\t\t        if x:\n                return y   \n\n\n",
        "\u{a0}\u{3000}  \u{85}\u{2028}end",
    ];
    let letters: Vec<char> = short.concat().chars().collect();
    let mut seed = 11_u64;
    let mut next = move |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % bound
    };
    let mut texts: Vec<String> = short.map(str::to_owned).to_vec();
    for _ in 0..200 {
        let n_letters = next(60);
        texts.push((0..n_letters).map(|_| letters[next(letters.len())]).collect());
    }
    // Long pieces are cut where nothing merges.
    for unit in ["a", " ", "1", "\n", "語", "e\u{301}", "ab c", "The vector's length, 12. "] {
        texts.push(unit.repeat(6_000));
    }
    for n_letters in [3_000, 9_000, 30_000] {
        texts.push((0..n_letters).map(|_| letters[next(letters.len())]).collect());
    }
    texts.push(texts.concat());
    texts
}

/// Pipelines that no family has, of every part and setting that is read, against the library.
pub(crate) fn check_odd(dir: &Path) -> usize {
    let pipelines = odd();
    for (normalizer, pre_tokenizer) in &pipelines {
        for settings in 0..16_u32 {
            let mut json = in_the_box();
            json["normalizer"] = normalizer.clone();
            json["pre_tokenizer"] = pre_tokenizer.clone();
            let is = |bit: u32| json!(settings >> bit & 1 == 1);
            for (id, text) in (8192..).zip(["<x>", "zzword", " . ", "Éz9É"]) {
                let mut token = added(id, text);
                (token["lstrip"], token["rstrip"]) = (is(0), is(1));
                (token["single_word"], token["normalized"]) = (is(2), is(3));
                json["added_tokens"].as_array_mut().unwrap().push(token);
            }
            let theirs = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
            std::fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
            std::fs::write(dir.join("tokenizer_config.json"), "{}").unwrap();
            let ours = Tokenizer::open(dir, usize::MAX).unwrap();
            for text in odd_texts() {
                let expected = theirs.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
                let found = ours.encode(&text).unwrap();
                let found: Vec<u32> = found.iter().map(|it| it.0).collect();
                assert_eq!(found, expected, "{normalizer} {pre_tokenizer} {settings} {text:?}");
            }
        }
    }
    pipelines.len() * 16
}

fn odd() -> Vec<(Value, Value)> {
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false});
    let then_bytes =
        |step: Value| json!({"type": "Sequence", "pretokenizers": [step, bytes.clone()]});
    let mut all = Vec::new();
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] {
        for invert in [false, true] {
            for expression in [r"\s", r"[a-z]*", "-|(?=x)"] {
                let step = json!({"type": "Split", "pattern": {"Regex": expression},
                    "behavior": behavior, "invert": invert});
                all.push((Value::Null, then_bytes(step)));
            }
        }
        all.push((Value::Null, then_bytes(json!({"type": "Punctuation", "behavior": behavior}))));
    }
    for kind in ["Whitespace", "WhitespaceSplit"] {
        all.push((Value::Null, then_bytes(json!({"type": kind}))));
    }
    for alone in [false, true] {
        let digits = json!({"type": "Digits", "individual_digits": alone});
        all.push((Value::Null, then_bytes(digits)));
    }
    for scheme in ["always", "first", "never"] {
        for split in [false, true] {
            let step = json!({"type": "Metaspace", "replacement": "\u{2581}",
                "prepend_scheme": scheme, "split": split});
            all.push((Value::Null, step));
        }
    }
    for normalizer in [
        json!({"type": "NFD"}),
        json!({"type": "NFKD"}),
        json!({"type": "NFKC"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Prepend", "prepend": "_"}),
        replace("o", "00"),
        replace("ll", ""),
        json!({"type": "Sequence", "normalizers":
            [{"type": "NFKC"}, {"type": "Lowercase"}, replace(" ", "\u{2581}")]}),
    ] {
        all.push((normalizer, bytes.clone()));
    }
    all
}

fn odd_texts() -> Vec<String> {
    let mut texts = texts();
    // The long ones are the same in every pipeline of a family.
    texts.retain(|text| text.len() < 300);
    texts.truncate(80);
    texts.extend(
        [
            "<x>",
            " <x> ",
            "  <x><x>  <x> a",
            "word words sword word",
            " .  . ",
            "Éz9É éz9é E\u{301}z9É",
            "a-b--c-x--",
            "- -",
            "hello  .  . <x> zzworld ll",
            "xyz x",
            "..!?a..",
            "\u{ab}a\u{bb}\u{2014}b",
        ]
        .map(str::to_owned),
    );
    texts
}
