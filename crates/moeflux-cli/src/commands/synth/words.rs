//! A tokenizer for an untrained model: bytes, a few special tokens, and invented words.
//!
//! **Invariant:** every vocabulary entry has a distinct text, so that the output of a random model
//! is visible; a prompt is read byte by byte, because no rule merges bytes into words.

use moeflux::provider::text::{BYTE_TOKENS, byte_tokenizer_json};
use serde_json::{Value, json};

/// Tokens that end a text, first the one that ends a message.
pub(super) const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// All special tokens, in the order of their ids after the bytes.
const SPECIAL: [&str; 3] = [ENDS[0], ENDS[1], "<|im_start|>"];

/// A space in byte-level tokenizers.
const SPACE: char = '\u{120}';

const CONSONANTS: [char; 16] =
    ['b', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z'];
const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];

/// Returns a `tokenizer.json` with exactly `vocab_size` entries.
pub(super) fn tokenizer_json(vocab_size: usize) -> Value {
    let mut tokenizer = byte_tokenizer_json(vocab_size, &SPECIAL);
    if let Some(Value::Object(vocab)) = tokenizer.pointer_mut("/model/vocab") {
        // The tokenizer library numbers special tokens by their entry here, if there is one, and
        // otherwise after the last word.
        let special = SPECIAL.into_iter().map(str::to_owned);
        let words = (0..).map(word);
        for (id, text) in (BYTE_TOKENS..vocab_size).zip(special.chain(words)) {
            vocab.insert(text, json!(id));
        }
    }
    tokenizer
}

/// Returns the texts of all entries, in order of their ids.
pub(super) fn texts(vocab_size: usize) -> Vec<String> {
    let mut texts = vec![String::new(); vocab_size];
    let tokenizer = tokenizer_json(vocab_size);
    let vocab = tokenizer.pointer("/model/vocab").and_then(Value::as_object);
    for (text, id) in vocab.into_iter().flatten() {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(place) = id.and_then(|id| texts.get_mut(id)) {
            place.clone_from(text);
        }
    }
    texts
}

/// Returns whether the token with this id is special.
pub(super) fn is_special(id: usize) -> bool {
    (BYTE_TOKENS..BYTE_TOKENS + SPECIAL.len()).contains(&id)
}

/// Returns the ids of the tokens that end a text and fit the vocabulary.
pub(super) fn end_ids(vocab_size: usize) -> Vec<usize> {
    (BYTE_TOKENS..BYTE_TOKENS + ENDS.len()).filter(|&id| id < vocab_size).collect()
}

/// Returns a space and syllables that are unique to the index.
fn word(word_idx: usize) -> String {
    let mut text = String::from(SPACE);
    let mut rest = word_idx + 1;
    while rest > 0 {
        // Bijective numeration without a zero digit: no word is another one with added zeros.
        rest -= 1;
        text.push(CONSONANTS[rest % CONSONANTS.len()]);
        rest /= CONSONANTS.len();
        text.push(VOWELS[rest % VOWELS.len()]);
        rest /= VOWELS.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_token_has_a_text_of_its_own() {
        for vocab_size in [1, 256, 257, 258, 300, 20_000] {
            let tokenizer = tokenizer_json(vocab_size);
            let added = tokenizer["added_tokens"].as_array().unwrap();
            let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
            let ids: HashSet<u64> = vocab.values().map(|id| id.as_u64().unwrap()).collect();
            assert_eq!((vocab.len(), ids.len()), (vocab_size, vocab_size));
            assert_eq!(ids.into_iter().max(), Some(vocab_size as u64 - 1));
            for token in added {
                assert_eq!(vocab[token["content"].as_str().unwrap()], token["id"]);
            }
        }
    }

    #[test]
    fn ends_fit_the_vocabulary() {
        assert_eq!(end_ids(4096), [256, 257]);
        assert_eq!(end_ids(257), [256]);
        assert_eq!(end_ids(100), [0_usize; 0]);
    }
}
