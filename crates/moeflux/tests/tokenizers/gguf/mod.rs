//! Tokenizers of GGUF files against the tokenizers library, which has the `tokenizer.json` that the
//! file was made from, and files that are wrong.
//!
//! The vocabulary, `crossing.json`, was trained on text that nothing had split: its tokens cross
//! every border at which an expression may cut, so a text that is cut elsewhere has other ids.
//! `tools/check/gguf_tokenizers.py` makes it, and the ids of `kimi.json`, which are tiktoken's.

mod file;
mod hostile;

use std::path::Path;

use moeflux::Result;
use moeflux::provider::format::parse_gguf;
use moeflux::provider::ids::TokenId;
use moeflux::provider::text::{Tokenizer, tokenizer_of_metadata};
use serde_json::{Value, json};

use crate::cases::{added, split};
use crate::families;
use crate::gguf::file::File;

/// Names, the expressions of the originals, whether NFC comes first, and whether a piece that is a
/// token stays whole.
const PRES: [(&str, &[&str], bool, bool); 13] = [
    ("qwen2", &[crate::cases::QWEN], true, false),
    ("qwen35", &[families::QWEN3_5], true, false),
    ("deepseek-v3", &[r"\p{N}{1,3}", families::CJK, families::DEEPSEEK], false, false),
    ("glm4", &[families::LLAMA3], false, true),
    ("glm5", &[families::LLAMA3], false, true),
    ("chatglm-bpe", &[families::LLAMA3], false, false),
    ("gpt-4o", &[families::O200K], false, true),
    ("minimax-m2", &[families::O200K], false, false),
    ("llama-bpe", &[families::LLAMA3], false, true),
    ("llama3", &[families::LLAMA3], false, true),
    ("llama-v3", &[families::LLAMA3], false, true),
    ("tekken", &[families::TEKKEN], false, true),
    ("olmo", &[families::GPT2], true, false),
];

/// Tokens that are found before a text is split. The last ones are no special tokens.
const ADDED: [&str; 6] =
    ["<|im_start|>", "<|im_end|>", "[gMASK]", "<think>", "</think>", "       "];

/// The tokenizer of a whole file.
pub(crate) fn open(path: &Path) -> Result<Tokenizer> {
    let bytes = std::fs::read(path).unwrap();
    let header = parse_gguf(&bytes, bytes.len() as u64).unwrap();
    tokenizer_of_metadata(path, &header.metadata, usize::MAX)
}

/// Compares all of them, and returns how many there are.
pub(crate) fn check(dir: &Path) -> (usize, usize) {
    let mut all_ids = Vec::new();
    for (pre, expressions, is_normalized, ignores_merges) in PRES {
        let json = original(expressions, (is_normalized, ignores_merges));
        all_ids.push((pre, json["pre_tokenizer"].clone(), check_pre(dir, pre, &json)));
    }
    for (pre, steps, ids) in &all_ids {
        let same = all_ids.iter().find(|(_, others, found)| others != steps && found == ids);
        assert!(same.is_none(), "{pre} and {:?} split the texts alike", same.map(|it| it.0));
    }
    check_kimi(dir);
    check_pieces(dir);
    (PRES.len() + 2, hostile::check(dir))
}

/// A `tokenizer.json` as its makers publish it, on the made vocabulary.
fn original(expressions: &[&str], (is_normalized, ignores_merges): (bool, bool)) -> Value {
    let crossing: Value = serde_json::from_str(include_str!("crossing.json")).unwrap();
    let texts = crossing["tokens"].as_array().unwrap();
    let mut vocab: serde_json::Map<String, Value> = (0..)
        .zip(texts)
        .map(|(id, text): (usize, _)| (text.as_str().unwrap().to_owned(), json!(id)))
        .collect();
    // Tokens that no merge makes: a piece becomes one only where merges are ignored.
    for text in ["ĠGerman", "Ġtheir", "quick"] {
        let id = vocab.len();
        vocab.entry(text).or_insert(json!(id));
    }
    let first = i64::try_from(vocab.len()).unwrap();
    let added: Vec<Value> = (first..)
        .zip(ADDED)
        .map(|(id, content)| {
            let mut token = added(id, content);
            token["special"] = json!(content.starts_with("<|") || content.starts_with('['));
            token
        })
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false});
    let mut steps: Vec<Value> = expressions.iter().map(|it| split(it)).collect();
    steps.push(bytes.clone());
    json!({"version": "1.0", "added_tokens": added,
        "normalizer": if is_normalized { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": ignores_merges, "vocab": vocab,
            "merges": crossing["merges"]}})
}

/// Compares ids and texts, and returns the ids.
fn check_pre(dir: &Path, pre: &str, json: &Value) -> Vec<Vec<u32>> {
    let theirs = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
    let path = dir.join("model.gguf");
    std::fs::write(&path, File::of_json(pre, json).bytes()).unwrap();
    let ours = open(&path).unwrap();
    let mut all = Vec::new();
    for text in texts() {
        let wanted = theirs.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
        assert_eq!(ids(&ours.encode(&text).unwrap()), wanted, "{pre} {text:?}");
        let tokens: Vec<TokenId> = wanted.iter().copied().map(TokenId).collect();
        assert_eq!(ours.decode(&tokens), theirs.decode(&wanted, false).unwrap(), "{pre}");
        let mut plain = theirs.clone();
        plain.set_encode_special_tokens(true);
        let is_found = ADDED[3..].iter().any(|added| text.contains(added));
        if !is_found {
            let wanted = plain.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            assert_eq!(ids(&ours.encode_plain(&text).unwrap()), wanted, "{pre} {text:?}");
        }
        all.push(wanted);
    }
    for added in json["added_tokens"].as_array().unwrap() {
        let id = ours.id_of(added["content"].as_str().unwrap()).unwrap();
        assert_eq!(json!(id.0), added["id"]);
        assert_eq!(json!(ours.is_special(id)), added["special"]);
    }
    all
}

/// Ids of tiktoken, whose vocabulary has ranks; the file has one merge for each token.
fn check_kimi(dir: &Path) {
    let crossing: Value = serde_json::from_str(include_str!("crossing.json")).unwrap();
    let kimi: Value = serde_json::from_str(include_str!("kimi.json")).unwrap();
    let strings = |json: &Value| -> Vec<String> {
        json.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let mut tokens = strings(&crossing["tokens"]);
    let mut types = vec![1; tokens.len()];
    tokens.extend(strings(&kimi["special"]));
    types.resize(tokens.len(), 3);
    let file = File::new("gpt2", "kimi-k2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &strings(&crossing["merges"])[..9]);
    let path = dir.join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let ours = open(&path).unwrap();
    let lines = kimi["lines"].as_array().unwrap();
    assert!(lines.len() >= 100);
    for line in lines {
        let text = line[0].as_str().unwrap();
        assert_eq!(json!(ids(&ours.encode(text).unwrap())), line[1], "kimi-k2 {text:?}");
        let tokens = ours.encode(text).unwrap();
        assert_eq!(ours.decode(&tokens), text);
    }
}

/// A vocabulary of sentencepiece, whose merges follow from scores.
fn check_pieces(dir: &Path) {
    let json = families::family("mixtral");
    let theirs = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
    let path = dir.join("model.gguf");
    std::fs::write(&path, File::of_pieces(&json).bytes()).unwrap();
    let ours = open(&path).unwrap();
    for text in texts() {
        let encode = |adds| theirs.encode_fast(text.as_str(), adds).unwrap().get_ids().to_vec();
        assert_eq!(ids(&ours.encode(&text).unwrap()), encode(false), "llama {text:?}");
        // A text that begins with the token for that gets no second one, as from a folder.
        let begins = encode(false).first() == Some(&1);
        let prompt = ids(&ours.encode_prompt(&text).unwrap());
        assert_eq!(prompt, encode(!begins), "llama {text:?}");
        let tokens: Vec<TokenId> = encode(true).into_iter().map(TokenId).collect();
        assert_eq!(ours.decode(&tokens), theirs.decode(&encode(true), false).unwrap(), "llama");
    }
}

fn texts() -> Vec<String> {
    let mut texts = families::texts();
    texts.extend(
        [
            "quick German their",
            "<think>\u{338}a<|im_end|>e\u{301}</think>       x",
            "[PAD3] [gMASK][gMASK] <|im_end| <|im_start",
            "1234567 ÀÉîõÜ aBC ABc 'ſ 'S",
        ]
        .map(str::to_owned),
    );
    texts
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}
