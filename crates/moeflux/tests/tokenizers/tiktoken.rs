//! `tiktoken.model` as Kimi's makers publish it, against ids of tiktoken (`gguf/kimi.json`), and
//! folders that are wrong.

use std::path::{Path, PathBuf};

use moeflux::Error;
use moeflux::provider::ids::TokenId;
use moeflux::provider::text::Tokenizer;
use serde_json::{Value, json};

const PROGRAM: &str = "tokenization_kimi.TikTokenTokenizer";

/// Compares all texts, and returns how many there are.
pub(crate) fn check(dir: &Path) -> usize {
    let folder = Folder::new(dir);
    let kimi: Value = serde_json::from_str(include_str!("gguf/kimi.json")).unwrap();
    let ours = folder.open(usize::MAX).unwrap();
    let lines = kimi["lines"].as_array().unwrap();
    assert!(lines.len() >= 100);
    for line in lines {
        let text = line[0].as_str().unwrap();
        let tokens = ours.encode(text).unwrap();
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        assert_eq!(json!(ids), line[1], "tiktoken.model {text:?}");
        assert_eq!(ours.decode(&tokens), text);
    }
    check_special_tokens(&folder);
    check_programs(&folder);
    lines.len()
}

fn check_special_tokens(folder: &Folder) {
    let n_tokens = u32::try_from(folder.n_tokens).unwrap();
    let ours = folder.open(usize::MAX).unwrap();
    assert_eq!(ours.vocab_size(), folder.n_tokens + 258);
    for (text, id, is_special) in [
        ("[BOS]", n_tokens, true),
        ("<think>", n_tokens + 3, false),
        ("<|reserved_token_1804|>", 1804, true),
    ] {
        assert_eq!(ours.id_of(text), Some(TokenId(id)));
        assert_eq!(ours.is_special(TokenId(id)), is_special, "{text}");
        assert_eq!(ours.encode(text).unwrap(), [TokenId(id)]);
        assert!(ours.encode_plain(text).unwrap().len() > 1);
    }
    // Reserved ones without a row are no tokens; those with a name must have one.
    let few = folder.open(folder.n_tokens + 10).unwrap();
    assert_eq!(few.vocab_size(), folder.n_tokens + 10);
    assert_eq!(few.id_of("<|reserved_token_1810|>"), None);
    let problem = folder.open(folder.n_tokens + 2).unwrap_err().to_string();
    assert!(problem.contains("tiktoken.model: the largest token id is 1803"), "{problem}");
}

fn check_programs(folder: &Folder) {
    let refused = |config: Value, model: &str, expected: &str| {
        folder.write("tokenizer_config.json", &config.to_string());
        folder.write("config.json", &json!({"model_type": model}).to_string());
        let error = folder.open(usize::MAX).unwrap_err();
        assert!(matches!(error, Error::UnknownTokenizer { .. }));
        let expected = format!("tiktoken.model: {expected} (known: {PROGRAM}); ");
        assert!(error.to_string().contains(&expected), "{error}");
    };
    let class = json!({"tokenizer_class": "TikTokenTokenizer"});
    refused(json!({}), "kimi_k2", "no tokenizer is named in tokenizer_config.json");
    refused(class.clone(), "other", "the tokenizer `TikTokenTokenizer` is not known");
    let other = json!({"auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}});
    refused(other, "kimi_k2", "the tokenizer `tokenization_x.X` is not known");
    let works = |config: &Value| {
        folder.write("tokenizer_config.json", &config.to_string());
        folder.write("config.json", &json!({"model_type": "kimi_k2"}).to_string());
        folder.open(usize::MAX).unwrap();
    };
    works(&class);
    works(&json!({"auto_map": {"AutoTokenizer": PROGRAM}}));
    works(&json!({"auto_map": {"AutoTokenizer": [format!("moonshotai/Kimi-K2--{PROGRAM}")]}}));
    folder.write("tiktoken.model", "AA== 0\nAQ= 1\n");
    let problem = folder.open(usize::MAX).unwrap_err().to_string();
    assert!(problem.ends_with("line 2 is not a token in base64 and its rank"), "{problem}");
}

/// A folder with the tokens of `gguf/crossing.json`, whose ids are ranks.
struct Folder {
    dir: PathBuf,
    n_tokens: usize,
}

impl Folder {
    fn new(dir: &Path) -> Self {
        let dir = dir.join("kimi");
        std::fs::create_dir_all(&dir).unwrap();
        let crossing: Value = serde_json::from_str(include_str!("gguf/crossing.json")).unwrap();
        let tokens = crossing["tokens"].as_array().unwrap();
        let line = |(rank, token): (usize, &Value)| {
            let bytes: Vec<u8> = token.as_str().unwrap().chars().map(byte_of).collect();
            format!("{} {rank}\n", base64(&bytes))
        };
        let file: String = tokens.iter().enumerate().map(line).collect();
        let n_tokens = tokens.len();
        let folder = Self { dir, n_tokens };
        folder.write("tiktoken.model", &file);
        let special = ["[BOS]", "[EOS]", "<|im_end|>", "<think>"].into_iter().enumerate();
        let listed: serde_json::Map<String, Value> = special
            .map(|(at, text)| {
                let entry = json!({"content": text, "special": text != "<think>"});
                ((n_tokens + at).to_string(), entry)
            })
            .collect();
        let auto_map = json!({"AutoTokenizer": [PROGRAM, null]});
        let config = json!({"added_tokens_decoder": listed, "auto_map": auto_map});
        folder.write("tokenizer_config.json", &config.to_string());
        folder
    }

    fn write(&self, name: &str, contents: &str) {
        std::fs::write(self.dir.join(name), contents).unwrap();
    }

    fn open(&self, vocab_rows: usize) -> moeflux::Result<Tokenizer> {
        Tokenizer::open(&self.dir, vocab_rows)
    }
}

/// The byte that a character of GPT-2's alphabet stands for.
fn byte_of(character: char) -> u8 {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(character) {
        Ok(byte) => byte,
        Err(_) => {
            let place = usize::try_from(u32::from(character) - 256).unwrap();
            (0..=u8::MAX).filter(|byte| !is_printable(byte)).nth(place).unwrap()
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut whole = [0; 4];
        whole[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(whole);
        for place in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap();
            text.push(if place > group.len() { '=' } else { char::from(letters[digit]) });
        }
    }
    text
}
