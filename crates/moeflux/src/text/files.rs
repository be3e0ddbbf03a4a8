//! Reads the small files beside a checkpoint's weights.
//!
//! **Invariant:** no read exceeds the caller's limit, whatever the file's length.

use std::hash::Hasher as _;
use std::path::Path;

use moeflux_io::is_harmful;
use serde_json::Value;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::{DocumentSum, parse_json, read_file_if_there};

/// Maximum bytes of a JSON config file. The largest published ones, with thousands of added tokens,
/// have about 2 MB. A list of numbers takes 80 times its length in memory as a tree.
pub(super) const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Maximum characters of an error text that quotes a file.
const PROBLEM_CHARS_MAX: usize = 300;

/// Maximum characters of a word quoted within an error text.
const WORD_CHARS_MAX: usize = 60;

/// Files in a folder that determine how text is encoded and decoded.
const TEXT_FILES: [&str; 7] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Hashes a folder's text-related files, and a tokenizer that replaces the folder's own.
pub(crate) fn text_fingerprint(dir: &Path, tokenizer: Option<&Path>) -> Result<u64> {
    let mut hash = XxHash3_64::new();
    let own = TEXT_FILES.iter().map(|name| dir.join(name));
    for path in own.chain(tokenizer.map(Path::to_owned)) {
        let file = DocumentSum::of_file(&path)?;
        hash.write_u64(file.map_or(u64::MAX, |file| file.len_bytes));
        hash.write_u64(file.map_or(0, |file| file.sum));
    }
    Ok(hash.finish())
}

/// Returns a problem as one line of bounded length.
pub(super) fn one_line(problem: &str) -> String {
    bounded(problem, PROBLEM_CHARS_MAX)
}

/// Shortens a word of a file, so that an error text can continue after it.
pub(super) fn shortened(word: &str) -> String {
    bounded(word, WORD_CHARS_MAX)
}

fn bounded(text: &str, n_chars_max: usize) -> String {
    let mut line = String::new();
    let mut n_chars = 0;
    for character in text.chars() {
        let is_harmful = is_harmful(character);
        n_chars += if is_harmful { character.escape_default().count() } else { 1 };
        if n_chars > n_chars_max {
            line.push_str("..");
            break;
        }
        match is_harmful {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// Reads a file as text; `None` if it is absent.
pub(super) fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let Some(bytes) = read_file_if_there(path, bytes_max)? else { return Ok(None) };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Error::malformed(path, format!("not UTF-8 at byte {at}")))
        }
    }
}

/// Reads the JSON object in a file; `None` if the file is absent.
pub(super) fn read_object(path: &Path) -> Result<Option<Value>> {
    let Some(bytes) = read_file_if_there(path, CONFIG_BYTES_MAX)? else { return Ok(None) };
    let value =
        parse_json(&bytes).map_err(|error| Error::malformed(path, format!("not JSON: {error}")))?;
    if !value.is_object() {
        return Err(Error::malformed(path, "not a JSON object"));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn limits_and_bad_contents() {
        let temp = TempDir::new();
        let dir = temp.path().to_owned();
        let path = dir.join("x.json");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap().unwrap(), "12345");
        assert!(read_text(&path, 4).unwrap_err().to_string().contains("the limit of 4 "));
        assert!(read_text(&dir.join("none"), 5).unwrap().is_none());
        assert!(read_text(&dir, 5).unwrap_err().to_string().starts_with("cannot open"));
        assert!(read_object(&path).unwrap_err().to_string().ends_with("not a JSON object"));
        std::fs::write(&path, b"{\"a\":").unwrap();
        assert!(read_object(&path).unwrap_err().to_string().contains("not JSON: EOF"));
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(one_line("a\nb\u{1b}[1m\u{202e}"), "a\\nb\\u{1b}[1m\\u{202e}");
        assert_eq!(one_line(&"x".repeat(1000)).len(), 302);
        assert!(read_text(&path, 9).unwrap_err().to_string().ends_with("not UTF-8 at byte 2"));
    }
}
