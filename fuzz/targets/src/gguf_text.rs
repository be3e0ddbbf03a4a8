//! Text metadata of a GGUF: an accepted tokenizer has ids below the model's rows, and takes any
//! text.

use std::path::Path;

use moeflux::provider::format::parse_gguf;
use moeflux::provider::ids::TokenId;
use moeflux::provider::text::text_of_metadata;

use crate::support::check_refusal;

const N_ROWS: usize = 4096;

const TEXT: &str = "Hello  world\n\t'll 1234<|im_end|> \u{e9}e\u{301}\u{fb01}\u{3042}\u{1f600}\0";

pub(crate) fn check(input: &[u8]) {
    let Ok(header) = parse_gguf(input, input.len() as u64) else { return };
    let path = Path::new("nowhere/model.gguf");
    let text = match text_of_metadata(path, &header.metadata, None, N_ROWS) {
        Ok(text) => text,
        Err(error) => return check_refusal(&error),
    };
    let tokenizer = text.tokenizer();
    let n_ids = tokenizer.vocab_size();
    assert!((1..=N_ROWS).contains(&n_ids));
    assert!(text.end_tokens().iter().all(|id| (id.0 as usize) < N_ROWS));
    for encoded in [tokenizer.encode(TEXT), tokenizer.encode_plain(TEXT), text.prompt(TEXT)] {
        match encoded {
            Ok(ids) => {
                assert!(ids.iter().all(|id| (id.0 as usize) < n_ids), "{ids:?} of {n_ids}");
                let _text = tokenizer.decode(&ids);
            }
            Err(error) => check_refusal(&error),
        }
    }
    for id in (0..=n_ids).map(|id| TokenId(u32::try_from(id).expect("few rows"))) {
        let text = tokenizer.token_text(id);
        assert!(text.is_some() || tokenizer.token_bytes(id).is_empty(), "{id:?}");
    }
    if let Err(error) = text.chat_template() {
        check_refusal(&error);
    }
}
