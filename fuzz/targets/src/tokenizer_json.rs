//! Tokenizers: an accepted one has ids below the model's rows, and takes any text and any ids.

use moeflux::provider::ids::TokenId;
use moeflux::provider::text::Tokenizer;

use crate::support::{TempFolder, check_refusal};

const N_ROWS: usize = 4096;

/// Spaces, digits, marks, scripts, a special token, and text that every normaliser changes.
const TEXT: &str = "Hello  world\n\t'll 1234<|im_end|> \u{e9}e\u{301}\u{fb01}\u{3042}\u{1f600}\0";

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let folder = TempFolder::new("tokenizer");
    move |input| check(&folder, input)
}

fn check(folder: &TempFolder, input: &[u8]) {
    folder.write("tokenizer.json", input);
    let tokenizer = match Tokenizer::open(folder.path(), N_ROWS) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return check_refusal(&error),
    };
    let n_ids = tokenizer.vocab_size();
    assert!((1..=N_ROWS).contains(&n_ids));
    let own = String::from_utf8_lossy(&input[..input.len().min(200)]);
    for text in [TEXT, &own, ""] {
        for encoded in
            [tokenizer.encode(text), tokenizer.encode_prompt(text), tokenizer.encode_plain(text)]
        {
            match encoded {
                Ok(ids) => {
                    assert!(ids.iter().all(|id| (id.0 as usize) < n_ids), "{ids:?} of {n_ids}");
                    let _text = tokenizer.decode(&ids);
                }
                Err(error) => check_refusal(&error),
            }
        }
    }
    // Includes the first id beyond the vocabulary.
    for id in (0..=n_ids).map(|id| TokenId(u32::try_from(id).expect("few rows"))) {
        let text = tokenizer.token_text(id);
        assert!(text.is_some() || tokenizer.token_bytes(id).is_empty(), "{id:?}");
        let _is_special = tokenizer.is_special(id);
    }
}
