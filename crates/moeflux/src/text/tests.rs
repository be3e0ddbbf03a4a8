//! Tokenizer and stream on small generated tokenizers, compared with the library's decoding of
//! whole texts.

use std::path::Path;

use moeflux_testing::random::Rng;
use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value, json};

use super::*;
use crate::ids::TokenId;
use crate::text::tokenizer::TEXT_BYTES_MAX;
use crate::text::tokenizer::byte_level::char_of;

/// The splitting pattern of the Qwen family, and the two of DeepSeek that differ most from it.
const QWEN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^
\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[
]*|\s*[
]+|\s+(?!\S)|\s+"##;

/// A checkpoint's folder with a byte tokenizer, deleted at the end.
pub(super) struct TokenizerFolder(TempDir);

impl TokenizerFolder {
    pub(super) fn new(vocab_size: usize, special: &[&str]) -> Self {
        let folder = Self(TempDir::new());
        folder.write("tokenizer.json", &byte_tokenizer_json(vocab_size, special).to_string());
        let config = byte_tokenizer_config_json(special.first().copied());
        folder.write("tokenizer_config.json", &config.to_string());
        folder
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn write(&self, name: &str, contents: &str) {
        self.0.write(name, contents);
    }

    fn refused(&self, vocab_rows: usize) -> String {
        Tokenizer::open(self.path(), vocab_rows).unwrap_err().to_string()
    }
}

fn open(tokenizer: &Value, rows: usize) -> Tokenizer {
    let folder = TokenizerFolder::new(300, &["<|im_end|>"]);
    folder.write("tokenizer.json", &tokenizer.to_string());
    Tokenizer::open(folder.path(), rows).unwrap()
}

/// Bytes, some merges and some added tokens; `<think>` is not special, as in Qwen's files.
fn merged() -> Value {
    let mut json = byte_tokenizer_json(256, &[]);
    let pieces = ["he", "ll", "hell", "Ġw", "or", "Ġwor"];
    for (id, piece) in (256..).zip(pieces) {
        json["model"]["vocab"][piece] = json!(id);
    }
    // Two thirds of a character; the last third is a separate token.
    let halves: String = [0xe8, 0xaa].map(char_of).iter().collect();
    json["model"]["vocab"][&halves] = json!(262);
    let merges = ["h e", "l l", "he ll", "Ġ w", "o r", "Ġw or", "è ª"];
    json["model"]["merges"] = json!(merges);
    json["added_tokens"] = json!([
        added(263, "<|im_start|>", true),
        added(264, "<|im_end|>", true),
        added(265, "<think>", false),
        added(266, "<｜User｜>", true)
    ]);
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
    ]});
    json
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

/// The format of SentencePiece files: words start with a mark, and unknown bytes are tokens.
fn sentencepiece() -> Value {
    let mut json = byte_tokenizer_json(256, &[]);
    let mut vocab = serde_json::Map::new();
    for byte in 0..256_usize {
        vocab.insert(format!("<0x{byte:02X}>"), json!(byte));
    }
    for (id, piece) in (256..).zip(["▁", "a", "b", "▁a", "▁ab", "<s>", "</s>"]) {
        vocab.insert(piece.to_owned(), json!(id));
    }
    json["model"] = json!({"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
        "byte_fallback": true, "vocab": vocab, "merges": ["▁ a", "▁a b"]});
    json["added_tokens"] = json!([added(261, "<s>", true), added(262, "</s>", true)]);
    json["pre_tokenizer"] = Value::Null;
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    json["decoder"] = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    json
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

#[test]
fn text_becomes_the_ids_that_the_merges_give() {
    let tokenizer = open(&merged(), 300);
    assert_eq!(tokenizer.vocab_size(), 267);
    let encoded = |text| ids(&tokenizer.encode(text).unwrap());
    assert_eq!(encoded("hello world"), [258, 111, 261, 108, 100]);
    assert_eq!(encoded("<|im_start|>he<think>"), [263, 256, 265]);
    assert_eq!(encoded("<｜User｜>語"), [266, 262, 0x9e]);
    assert_eq!(encoded(""), [0_u32; 0]);
    let plain = tokenizer.encode_plain("<|im_start|>he").unwrap();
    assert_eq!(plain[0], TokenId(u32::from(b'<')));
    assert!(!plain.contains(&TokenId(263)));
    assert_eq!(tokenizer.decode(&plain), "<|im_start|>he");
    assert_eq!(tokenizer.id_of("<|im_end|>"), Some(TokenId(264)));
    assert_eq!(tokenizer.id_of("<|none|>"), None);
    assert_eq!(tokenizer.token_text(TokenId(261)).unwrap(), " wor");
    assert_eq!(tokenizer.token_text(TokenId(266)).unwrap(), "<｜User｜>");
    assert_eq!(tokenizer.token_text(TokenId(299)), None);
    assert!(tokenizer.is_special(TokenId(263)) && !tokenizer.is_special(TokenId(265)));
    assert!(!tokenizer.is_special(TokenId(u32::MAX)));
}

#[test]
fn published_pre_tokenizer_patterns_split_as_meant() {
    for pattern in [QWEN, CJK, DEEPSEEK, r"\p{N}{1,3}", r"\s?\p{L}+", r"\s?[^\s\p{L}\p{N}]+"] {
        let mut json = merged();
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(pattern);
        let tokenizer = open(&json, 300);
        let text = "It's 12  spaces,\n\n \tand 語 ÉÀ! ";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text, "{pattern}");
    }
    // " w" is one token only if the space belongs to the word: the last of two.
    let tokenizer = open(&merged(), 300);
    assert_eq!(ids(&tokenizer.encode("  wo").unwrap()), [32, 259, 111]);
}

#[test]
fn a_long_run_of_one_character_is_encoded() {
    let tokenizer = open(&merged(), 300);
    for text in [" ", "h", "\n", "!", "語"].map(|character| character.repeat(100_000)) {
        let tokens = tokenizer.encode(&format!("{text}x")).unwrap();
        assert_eq!(tokenizer.decode(&tokens), format!("{text}x"));
    }
}

#[test]
fn the_start_token_is_added_once_if_the_config_asks() {
    let folder = TokenizerFolder::new(300, &["<s>"]);
    folder.write("tokenizer_config.json", r#"{"bos_token": "<s>", "add_bos_token": true}"#);
    let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
    assert_eq!(ids(&tokenizer.encode_prompt("a").unwrap()), [256, 97]);
    assert_eq!(ids(&tokenizer.encode_prompt("<s>a").unwrap()), [256, 97]);
    assert_eq!(ids(&tokenizer.encode("a").unwrap()), [97]);
    folder.write("tokenizer_config.json", r#"{"bos_token": {"content": "<s>"}}"#);
    let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
    assert_eq!(ids(&tokenizer.encode_prompt("a").unwrap()), [97]);
    assert_eq!(tokenizer.special_tokens().role("bos_token"), Some("<s>"));
}

#[test]
fn tokens_that_only_the_config_lists_are_added() {
    let folder = TokenizerFolder::new(258, &["<a>", "<b>"]);
    let listed = |id: &str| {
        format!(r#"{{"added_tokens_decoder": {{"{id}": {{"content": "<c>", "special": true}}}}}}"#)
    };
    folder.write("tokenizer_config.json", &listed("258"));
    let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
    assert_eq!(ids(&tokenizer.encode("<c>").unwrap()), [258]);
    assert!(tokenizer.is_special(TokenId(258)));
    folder.write("tokenizer_config.json", &listed("270"));
    assert!(folder.refused(300).contains("added token `<c>` should have id 270"));
}

#[test]
fn unusable_folders_are_refused_with_a_reason() {
    let folder = TokenizerFolder::new(300, &["<|im_end|>"]);
    assert_eq!(
        folder.refused(256).split(": ").skip(1).collect::<Vec<_>>().join(": "),
        "the largest token id is 256, but the model has 256 embedding rows: this tokenizer \
         belongs to another model"
    );
    assert!(Tokenizer::open(folder.path(), 257).is_ok());
    let mut gap = byte_tokenizer_json(300, &["<a>"]);
    gap["added_tokens"][0]["id"] = json!(280);
    folder.write("tokenizer.json", &gap.to_string());
    assert!(folder.refused(300).contains("`<a>` should have id 280"), "{}", folder.refused(300));
    for (contents, reason) in [
        ("", "not a tokenizer: EOF"),
        ("{", "not a tokenizer: EOF"),
        ("[]", "not a tokenizer"),
        ("{}", "not a tokenizer"),
        (r#"{"version": "2.0"}"#, "unknown tokenizer version"),
        (r#"{"added_tokens": [{"id": -1, "content": "x"}]}"#, "invalid value: integer `-1`"),
    ] {
        folder.write("tokenizer.json", contents);
        let error = folder.refused(300);
        assert!(error.contains(reason) && !error.contains('\n'), "{contents}: {error}");
    }
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(folder.refused(300).contains("missing; copy it"));
    folder.write("tiktoken.model", "");
    let problem = folder.refused(300);
    let expected = "tiktoken.model: the tokenizer `PreTrainedTokenizerFast` is not known (known: \
                    tokenization_kimi.TikTokenTokenizer); ";
    assert!(problem.contains(expected), "{problem}");
    folder.write("tokenizer.json", &byte_tokenizer_json(256, &[]).to_string());
    folder.write("tokenizer_config.json", r#"{"eos_token": 5}"#);
    assert!(folder.refused(300).contains("`eos_token` is 5"), "{}", folder.refused(300));
}

#[test]
fn a_text_above_the_limit_is_refused() {
    let tokenizer = open(&merged(), 300);
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    for refused in [tokenizer.encode(&long), tokenizer.encode_plain(&long)] {
        assert!(refused.unwrap_err().to_string().contains("the limit is 67108864"));
    }
}

/// Seeded damage to a valid file yields an error or a tokenizer, never a panic.
#[test]
fn damaged_files_do_not_panic() {
    let folder = TokenizerFolder::new(300, &[]);
    let mut rng = Rng::new(0x0bad);
    for good in [merged(), sentencepiece()] {
        let good = good.to_string().into_bytes();
        for _ in 0..250 {
            let mut bytes = good.clone();
            for _ in 0..3 {
                let place = rng.below(bytes.len());
                bytes[place] = rng.pick(b"0,:\"{}[]x");
            }
            std::fs::write(folder.path().join("tokenizer.json"), &bytes).unwrap();
            if let Ok(tokenizer) = Tokenizer::open(folder.path(), usize::MAX) {
                let tokens = tokenizer.encode("hello 語 world").unwrap_or_default();
                assert!(tokens.is_empty() || !tokenizer.decode(&tokens).is_empty());
            }
        }
    }
}

#[test]
fn a_made_tokenizer_fits_any_vocabulary() {
    let special = ["<|im_start|>", "<|im_end|>", "<think>"];
    for vocab_size in [1, 100, 256, 257, 259, 1_000] {
        let folder = TokenizerFolder::new(vocab_size, &special);
        let tokenizer = Tokenizer::open(folder.path(), vocab_size).unwrap();
        assert_eq!(tokenizer.vocab_size(), vocab_size.min(259));
        assert!(ChatTemplate::open(folder.path()).unwrap().is_some());
    }
    let folder = TokenizerFolder::new(300, &special);
    let template = ChatTemplate::open(folder.path()).unwrap().unwrap();
    let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
    let messages = [Message::new("system", "S"), Message::new("user", "U")];
    assert_eq!(
        template.render(&messages, &options).unwrap(),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    );
    let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
    assert_eq!(ids(&tokenizer.encode("<think>\n").unwrap()), [258, 10]);
}

/// Returns all pieces and the rest. Each is a `str`, hence whole characters.
fn streamed(tokenizer: &Tokenizer, special: SpecialText, tokens: &[TokenId]) -> Vec<String> {
    let mut stream = TextStream::new(tokenizer, special);
    let mut pieces: Vec<String> =
        tokens.iter().map(|token| stream.push(*token).to_owned()).collect();
    pieces.push(stream.finish().to_owned());
    pieces
}

#[test]
fn characters_wait_until_they_are_whole() {
    let tokenizer = open(&merged(), 300);
    let check = |tokens: &[u32], expected: &[&str]| {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
        assert_eq!(streamed(&tokenizer, SpecialText::Hidden, &tokens), expected);
    };
    check(&[258, 111], &["hell", "o", ""]);
    check(&[262, 0x9e, 97], &["", "語", "a", ""]);
    check(&[262, 97], &["", "\u{fffd}a", ""]);
    check(&[262], &["", "\u{fffd}"]);
    check(&[0xff, 0xf0, 0x9f, 0x98, 0x80], &["\u{fffd}", "", "", "", "😀", ""]);
    check(&[0xc3, 264, 0xa9, 265], &["", "", "é", "<think>", ""]);
    check(&[97, 280, u32::MAX, 98], &["a", "", "", "b", ""]);
    let cut = |tokens: &[u32]| {
        let mut stream = TextStream::new(&tokenizer, SpecialText::Hidden);
        let text: String = tokens.iter().map(|it| stream.push(TokenId(*it)).to_owned()).collect();
        text + stream.finish_cut()
    };
    assert_eq!(cut(&[97, 262]), "a", "cut inside a character");
    assert_eq!(cut(&[97, 0xf0, 0x9f, 0x98]), "a");
    assert_eq!(cut(&[0xff, 97]), "\u{fffd}a", "what is no character was told");
    let shown = streamed(&tokenizer, SpecialText::Shown, &[TokenId(97), TokenId(264)]);
    assert_eq!(shown, ["a", "<|im_end|>", ""]);
}

#[test]
fn spaces_of_sentencepiece_tokens_come_out_once() {
    let tokenizer = open(&sentencepiece(), 300);
    let check = |text: &str| {
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(streamed(&tokenizer, SpecialText::Hidden, &tokens).concat(), text);
    };
    for text in ["ab a b", "a  ab", "ab é 語 😀 ab", "\n\na ab"] {
        check(text);
    }
    let tokens = [260, 0xe8, 0xaa, 0x9e, 259].map(TokenId);
    let pieces = streamed(&tokenizer, SpecialText::Hidden, &tokens);
    assert_eq!(pieces, ["ab", "", "", "語", " a", ""]);
    let unfinished = streamed(&tokenizer, SpecialText::Hidden, &[260, 0xe8].map(TokenId));
    assert_eq!(unfinished, ["ab", "", "\u{fffd}"]);
    for n_bytes in 1..=3 {
        let mut stream = TextStream::new(&tokenizer, SpecialText::Hidden);
        let tokens = [260, 0xf0, 0x9f, 0x98].map(TokenId);
        let text: String =
            tokens[..=n_bytes].iter().map(|it| stream.push(*it).to_owned()).collect();
        assert_eq!(text + stream.finish_cut(), "ab", "{n_bytes} bytes");
    }
}

#[test]
fn any_tokens_give_the_text_of_the_whole() {
    let tokenizer = open(&merged(), 300);
    let fallback = open(&sentencepiece(), 300);
    let mut rng = Rng::new(0x70_6b);
    for _ in 0..2_000 {
        let n_tokens = rng.below(60);
        let mut next = || TokenId(u32::try_from(rng.below(290)).unwrap());
        let tokens: Vec<TokenId> = (0..n_tokens).map(|_| next()).collect();
        let pieces = streamed(&tokenizer, SpecialText::Shown, &tokens);
        assert_eq!(pieces.concat(), tokenizer.decode(&tokens), "{tokens:?}");
        // Random fallback bytes are rarely text; the test is only that nothing panics.
        streamed(&fallback, SpecialText::Hidden, &tokens);
    }
}

#[test]
fn bytes_that_never_become_text_do_not_wait_for_ever() {
    let tokenizer = open(&sentencepiece(), 300);
    let pieces = streamed(&tokenizer, SpecialText::Hidden, &[TokenId(0xe8); 100]);
    assert!(pieces[..40].iter().any(|piece| !piece.is_empty()), "{pieces:?}");
}
