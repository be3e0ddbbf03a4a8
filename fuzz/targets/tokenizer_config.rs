//! `tokenizer_config.json`: what is accepted names tokens in roles that there are, and leaves a
//! tokenizer whose ids have rows.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use moeflux::provider::text::{ChatTemplate, EndTokens, SpecialTokens, Tokenizer};
use moeflux_fuzz::{Folder, check_refusal};

const N_ROWS: usize = 64;

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::new("tokenizer-config");
    folder.write(
        "tokenizer.json",
        br#"{"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}"#,
    );
    folder
});

fuzz_target!(|input: &[u8]| {
    FOLDER.write("tokenizer_config.json", input);
    if let Err(error) = ChatTemplate::open(FOLDER.path()) {
        check_refusal(&error);
    }
    let special = SpecialTokens::open(FOLDER.path());
    let tokenizer = Tokenizer::open(FOLDER.path(), N_ROWS);
    let tokenizer = match (special, tokenizer) {
        (Ok(special), Ok(tokenizer)) => {
            assert_eq!(*tokenizer.special_tokens(), special);
            tokenizer
        }
        (_, Err(error)) => return check_refusal(&error),
        (Err(error), Ok(_)) => panic!("a tokenizer in spite of: {error}"),
    };
    let special = tokenizer.special_tokens();
    for (role, text) in special.roles() {
        assert_eq!(special.role(role), Some(text));
        assert!(role.ends_with("_token"));
    }
    assert!((3..=N_ROWS).contains(&tokenizer.vocab_size()));
    let ends = EndTokens::open(FOLDER.path(), &tokenizer).expect("no other file says anything");
    assert!(ends.tokens().iter().all(|id| (id.0 as usize) < tokenizer.vocab_size()));
    match tokenizer.encode_prompt("ab<s>") {
        Ok(ids) => assert!(ids.iter().all(|id| (id.0 as usize) < tokenizer.vocab_size())),
        Err(error) => check_refusal(&error),
    }
});
