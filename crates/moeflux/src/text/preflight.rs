//! Refuses a `tokenizer.json` on which the tokenizers library would fail hard instead of saying so.
//!
//! The library trusts its file in a few places: a merge longer than every token, a decoder that
//! cuts more than a token has, a precompiled character map that is none, JSON that breaks inside
//! a decoder.
//! **Invariant:** what passes is whole JSON without these; everything else is the library's to
//! judge. Found by damaging good files at random, which is still a test.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// Parses the file and checks what the library does not.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Value> {
    let json: Value = serde_json::from_slice(bytes)
        .map_err(|error| Error::malformed(path, format!("not a tokenizer: {error}")))?;
    if !json.is_object() {
        return Err(Error::malformed(path, "not a tokenizer: not a JSON object"));
    }
    for part in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        check_part(path, &json[part])?;
    }
    check_model(path, &json["model"])?;
    Ok(json)
}

/// A part of the pipeline, or a sequence of parts. serde_json limits how deep they nest.
fn check_part(path: &Path, part: &Value) -> Result<()> {
    for list in ["normalizers", "pretokenizers", "processors", "decoders"] {
        for part in part[list].as_array().into_iter().flatten() {
            check_part(path, part)?;
        }
    }
    let refused = |what: &str| Err(Error::malformed(path, format!("{what} is not supported")));
    if part["type"] == "Precompiled" || part.get("precompiled_charsmap").is_some() {
        return refused("a precompiled character map");
    }
    if part["stop"].as_u64().is_some_and(|stop| stop > 0) {
        return refused("a decoder that cuts characters from the end of tokens");
    }
    Ok(())
}

fn check_model(path: &Path, model: &Value) -> Result<()> {
    if model["continuing_subword_prefix"].as_str().is_some_and(|prefix| !prefix.is_empty())
        && model["type"] != "WordPiece"
    {
        return Err(Error::malformed(path, "a prefix of subwords is not supported"));
    }
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array())
    else {
        return Ok(());
    };
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    for (number, merge) in (1..).zip(merges) {
        // Either "a b" or ["a", "b"].
        let n_bytes = match merge {
            Value::String(pair) => pair.len().saturating_sub(1),
            pair => {
                pair.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::len).sum()
            }
        };
        if n_bytes > longest {
            let problem = format!("merge {number} makes a token that the vocabulary does not have");
            return Err(Error::malformed(path, problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(json: &Value) -> String {
        parse(Path::new("t.json"), json.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn what_the_library_would_fail_on() {
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 1});
        let nested =
            json!({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]}});
        assert!(refused(&nested).ends_with("from the end of tokens is not supported"));
        let map = json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}});
        assert!(refused(&map).ends_with("a precompiled character map is not supported"));
        for merge in [json!("ab c"), json!(["ab", "c"])] {
            let model = json!({"model": {"vocab": {"ab": 0, "c": 1}, "merges": ["a b", merge]}});
            assert!(refused(&model).starts_with("t.json: merge 2 makes a token"));
        }
    }
}
