//! Text of a GGUF model: its own, or that of a `tokenizer.json` which lies next to it or is named.

use moeflux::provider::text::byte_tokenizer_json;
use moeflux::{Engine, Error, Model, Remedy, TokenId};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::temp_dir::TempDir;

const VOCAB: usize = 128;

#[test]
fn a_tokenizer_json_helps_where_the_file_has_no_tokenizer() {
    let dir = TempDir::copy_of(&golden_dir().join("gguf-qwen3moe-q8"));
    let file = dir.path().join("model.gguf");
    let error = Model::open(&file).unwrap().text().unwrap_err();
    assert!(matches!(error, Error::UnknownTokenizer { .. }), "{error}");
    assert_eq!(error.remedy(), Some(Remedy::TokenizerFile));
    assert!(error.to_string().contains("`tokenizer.ggml.token_type` is missing"), "{error}");

    let named = dir.path().join("other.json");
    std::fs::write(&named, byte_tokenizer_json(VOCAB, &[]).to_string()).unwrap();
    let with_named = || Model::open(&file).unwrap().with_tokenizer(&named);
    check(&with_named());
    std::fs::rename(&named, dir.path().join("tokenizer.json")).unwrap();
    let error = with_named().text().unwrap_err().to_string();
    assert!(error.contains("other.json"), "{error}");
    for path in [file.as_path(), dir.path()] {
        check(&Model::open(path).unwrap());
    }
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    let error = Model::open(&file).unwrap().text().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: not a tokenizer"), "{error}");
}

/// Checks that bytes are tokens, and that the metadata determines the token that ends an answer.
fn check(model: &Model) {
    let text = model.text().unwrap();
    assert_eq!(text.tokenizer().encode("AB").unwrap(), [TokenId(65), TokenId(66)]);
    assert_eq!(text.end_tokens(), [TokenId(2)]);
    assert_eq!(text.vocab(), VOCAB);
    assert!(text.chat_template().unwrap().is_none());
    let engine = Engine::builder(model.clone()).load().unwrap();
    let mut session = engine.session(64).unwrap();
    let prompt = text.prompt("AB").unwrap();
    text.generation(text.sampling(1), 4).unwrap().answer(&mut session, &prompt).unwrap();
}
