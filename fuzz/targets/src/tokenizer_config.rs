//! `tokenizer_config.json`: an accepted config names tokens in known roles, and results in a
//! tokenizer whose ids have rows.

use moeflux::provider::text::{ChatTemplate, EndTokens, SpecialTokens, Tokenizer};

use crate::support::{TempFolder, check_refusal};

const N_ROWS: usize = 64;

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let folder = TempFolder::new("tokenizer-config");
    folder.write(
        "tokenizer.json",
        br#"{"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}"#,
    );
    move |input| check(&folder, input)
}

fn check(folder: &TempFolder, input: &[u8]) {
    folder.write("tokenizer_config.json", input);
    if let Err(error) = ChatTemplate::open(folder.path()) {
        check_refusal(&error);
    }
    let special = SpecialTokens::open(folder.path());
    let tokenizer = Tokenizer::open(folder.path(), N_ROWS);
    let tokenizer = match (special, tokenizer) {
        (Ok(special), Ok(tokenizer)) => {
            assert_eq!(*tokenizer.special_tokens(), special);
            tokenizer
        }
        (_, Err(error)) => return check_refusal(&error),
        (Err(error), Ok(_)) => unreachable!("a tokenizer in spite of: {error}"),
    };
    let special = tokenizer.special_tokens();
    for (role, text) in special.roles() {
        assert_eq!(special.role(role), Some(text));
        assert!(role.ends_with("_token"));
    }
    assert!((3..=N_ROWS).contains(&tokenizer.vocab_size()));
    let ends = EndTokens::open(folder.path(), &tokenizer).expect("no other file says anything");
    assert!(ends.tokens().iter().all(|id| (id.0 as usize) < tokenizer.vocab_size()));
    match tokenizer.encode_prompt("ab<s>") {
        Ok(ids) => assert!(ids.iter().all(|id| (id.0 as usize) < tokenizer.vocab_size())),
        Err(error) => check_refusal(&error),
    }
}
