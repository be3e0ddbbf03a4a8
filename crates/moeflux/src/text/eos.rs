//! The tokens that end an answer: the union over all of a checkpoint's files.
//!
//! `config.json` (including its `text_config`), `generation_config.json` and the tokenizer's
//! `eos_token` often disagree: one names the end of a chat turn, another the end of the text. Any
//! of them ends an answer. **Invariant:** ids are in ascending order and unique.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::text::files::read_object;
use crate::text::tokenizer::Tokenizer;

/// The ends of an answer and of a call, in tokenizers that have both. `<|end|>` only ends a
/// message.
const HARMONY_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];

/// The tokens that end an answer. The set may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndTokens {
    tokens: Vec<TokenId>,
}

impl EndTokens {
    /// Reads a checkpoint's folder.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or an `eos_token_id` is not an id or a list of ids.
    pub fn open(dir: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let mut tokens = Vec::new();
        for name in ["config.json", "generation_config.json"] {
            let path = dir.join(name);
            let Some(json) = read_object(&path)? else { continue };
            for owner in [Some(&json), json.get("text_config")].into_iter().flatten() {
                tokens.extend(ids(&path, owner)?);
            }
        }
        let named = tokenizer.special_tokens().role("eos_token");
        tokens.extend(named.and_then(|text| tokenizer.id_of(text)));
        // A config may name only one of them. A call ends an answer too: only its result can
        // follow.
        let harmony = HARMONY_ENDS.map(|text| tokenizer.id_of(text));
        if let [Some(answer), Some(call)] = harmony {
            tokens.extend([answer, call]);
        }
        Ok(Self::new(tokens))
    }

    /// Creates the set from tokens in any order.
    #[must_use]
    pub fn new(mut tokens: Vec<TokenId>) -> Self {
        tokens.sort_unstable();
        tokens.dedup();
        Self { tokens }
    }

    /// Returns whether this token ends an answer.
    #[must_use]
    pub fn contains(&self, token: TokenId) -> bool {
        self.tokens.binary_search(&token).is_ok()
    }

    /// Returns all tokens, ascending.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }
}

fn ids(path: &Path, json: &Value) -> Result<Vec<TokenId>> {
    let value = match json.get("eos_token_id") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(value) => value,
    };
    let one = std::slice::from_ref(value);
    let list = value.as_array().map_or(one, Vec::as_slice);
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
    list.iter().map(id).collect::<Option<_>>().ok_or_else(|| {
        let shortened: String = value.to_string().chars().take(60).collect();
        Error::malformed(path, format!("`eos_token_id` is {shortened}, not an id or a list of ids"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::TokenizerFolder;

    #[test]
    fn the_union_of_all_files() {
        let folder = TokenizerFolder::new(300, &["<|im_end|>", "<|endoftext|>"]);
        let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
        folder.write("config.json", r#"{"eos_token_id": 7, "text_config": {"eos_token_id": 3}}"#);
        folder.write("generation_config.json", r#"{"eos_token_id": [257, 7]}"#);
        let ends = EndTokens::open(folder.path(), &tokenizer).unwrap();
        assert_eq!(ends.tokens(), [3, 7, 256, 257].map(TokenId));
        assert!(ends.contains(TokenId(257)) && !ends.contains(TokenId(4)));
        let folder_of_two = TokenizerFolder::new(300, &["<|return|>", "<|end|>", "<|call|>"]);
        let tokenizer_of_two = Tokenizer::open(folder_of_two.path(), 300).unwrap();
        let ends = EndTokens::open(folder_of_two.path(), &tokenizer_of_two).unwrap();
        assert_eq!(ends.tokens(), [256, 258].map(TokenId));
        folder.write("config.json", r#"{"eos_token_id": -1}"#);
        let error = EndTokens::open(folder.path(), &tokenizer).unwrap_err().to_string();
        assert!(error.ends_with("`eos_token_id` is -1, not an id or a list of ids"), "{error}");
        folder.write("config.json", r#"{"eos_token_id": [1, "x"]}"#);
        assert!(EndTokens::open(folder.path(), &tokenizer).is_err());
    }
}
