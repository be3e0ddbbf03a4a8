//! `tiktoken.model`: an accepted tokenizer has ids below the model's rows, and takes any text and
//! any ids.

use moeflux::provider::ids::TokenId;
use moeflux::provider::text::Tokenizer;

use crate::support::{TempFolder, check_refusal};

const N_ROWS: usize = 4096;

/// Spaces, digits, marks, scripts, special tokens.
const TEXT: &str = "Hello  world\n\t'll 1234[BOS]<|reserved_token_300|> \u{e9}e\u{301}\u{6211}\0";

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let folder = TempFolder::new("tiktoken-model");
    folder.write(
        "tokenizer_config.json",
        br#"{"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]},
            "added_tokens_decoder": {"257": {"content": "[BOS]", "special": true}}}"#,
    );
    move |input| check(&folder, input)
}

fn check(folder: &TempFolder, input: &[u8]) {
    folder.write("tiktoken.model", input);
    let tokenizer = match Tokenizer::open(folder.path(), N_ROWS) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return check_refusal(&error),
    };
    assert!((256..=N_ROWS).contains(&tokenizer.vocab_size()));
    let ids = tokenizer.encode(TEXT).expect("every byte has a token");
    assert!(ids.iter().all(|id| (id.0 as usize) < tokenizer.vocab_size()));
    assert_eq!(tokenizer.decode(&ids), TEXT);
    let ids: Vec<TokenId> = (0..u32::try_from(N_ROWS).unwrap_or(0)).map(TokenId).collect();
    let _text = tokenizer.decode(&ids);
}
