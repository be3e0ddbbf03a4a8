//! JSON as Python writes it, where `NaN`, `Infinity` and `-Infinity` may stand for numbers.
//!
//! **Invariant:** such a word is kept as a marked string that no getter takes for a number, a name
//! or an absent key. JSON without these words is parsed exactly as by `serde_json`, with the same
//! errors.

use std::borrow::Cow;

use serde_json::Value;

/// The words. A longer word precedes its prefixes.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Marks a string that stands for one of [`WORDS`]. The character is a Unicode noncharacter,
/// reserved for internal use: it has no meaning in any text.
const MARK: char = '\u{fdd0}';

/// Parses JSON in which `NaN`, `Infinity` and `-Infinity` may stand for numbers.
///
/// # Errors
///
/// If the bytes are not JSON. The error is that of `serde_json`.
pub fn parse_json(bytes: &[u8]) -> serde_json::Result<Value> {
    let error = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    match std::str::from_utf8(bytes).map(with_texts) {
        Ok(Cow::Owned(text)) => serde_json::from_str(&text),
        _ => Err(error),
    }
}

/// Returns the word if this value stands for one of [`WORDS`].
pub(crate) fn word(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(MARK).filter(|it| WORDS.contains(it))
}

/// Formats a value over several lines. `NaN`, `Infinity` and `-Infinity` are written as they were
/// read.
#[must_use]
pub fn write_json(value: &Value) -> String {
    let mut text = format!("{value:#}\n");
    for word in WORDS {
        text = text.replace(&format!("\"{MARK}{word}\""), word);
    }
    text
}

/// Replaces each word in the place of a value by a marked string; borrows `json` if there is none.
fn with_texts(json: &str) -> Cow<'_, str> {
    let mut changed = String::new();
    let (mut rest, mut is_in_text) = (json, false);
    // The input from here on is not copied yet.
    let mut kept = json;
    while let Some(first) = rest.chars().next() {
        let mut n_bytes = first.len_utf8();
        match first {
            '"' => is_in_text = !is_in_text,
            '\\' if is_in_text => n_bytes += rest.chars().nth(1).map_or(0, char::len_utf8),
            'N' | 'I' | '-' if !is_in_text => {
                if let Some(word) = word_at(rest) {
                    let n_before = kept.len() - rest.len();
                    changed.extend(kept.get(..n_before));
                    changed.extend(['"', MARK]);
                    changed.push_str(word);
                    changed.push('"');
                    n_bytes = word.len();
                    kept = rest.get(n_bytes..).unwrap_or_default();
                }
            }
            _ => {}
        }
        rest = rest.get(n_bytes..).unwrap_or_default();
    }
    if changed.is_empty() {
        return Cow::Borrowed(json);
    }
    changed.push_str(kept);
    Cow::Owned(changed)
}

/// Returns the word at the start of a text if a value ends after it. A key or a part of a longer
/// word does not match.
fn word_at(text: &str) -> Option<&'static str> {
    let word = WORDS.into_iter().find(|word| text.starts_with(word))?;
    let after = text.get(word.len()..)?.trim_start_matches([' ', '\t', '\r', '\n']);
    matches!(after.chars().next(), None | Some(',' | ']' | '}')).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_words(json: &str, expected: &[Option<&str>]) {
        let value = parse_json(json.as_bytes()).unwrap();
        let found: Vec<Option<&str>> = value.as_array().unwrap().iter().map(word).collect();
        assert_eq!(found, expected, "{json}");
    }

    #[test]
    fn python_words_are_read_as_numbers() {
        let (nan, more, less) = (Some("NaN"), Some("Infinity"), Some("-Infinity"));
        check_words("[NaN, Infinity,-Infinity ]", &[nan, more, less]);
        check_words("[NaN\n\t, 1]", &[nan, None]);
        check_words(
            r#"["NaN", "Infinity", "a \" NaN, ", "\\", NaN]"#,
            &[None, None, None, None, nan],
        );
        check_words("[-1, 2e9, null, \"\u{e9}\", Infinity]", &[None, None, None, None, more]);
        let value = parse_json(b"{\"a\": {\"b\": [0.0, Infinity]}, \"c\": \"x\"}").unwrap();
        let at = |place| value.pointer(place).unwrap();
        assert_eq!(word(at("/a/b/1")), more);
        assert_eq!((at("/a/b/0").as_f64(), at("/c").as_str()), (Some(0.0), Some("x")));
        assert_eq!(word(&parse_json(b" NaN ").unwrap()), nan);
        // Strings that begin with the mark but are not words.
        check_words("[\"\u{fdd0}\", \"\u{fdd0}nan\", NaN]", &[None, None, nan]);
    }

    #[test]
    fn json_that_python_refuses_is_refused() {
        for json in [
            "{NaN: 1}",
            "[+Infinity]",
            "[-NaN]",
            "[NaNs]",
            "[xNaN]",
            "[nan]",
            "[inf]",
            "[1NaN]",
            "[Infinity1]",
            "[NaN NaN]",
            "[NaN",
            "NaN, ",
            "[--Infinity]",
            "[\"NaN, NaN]",
            "[.NaN]",
            "[NaN\"\"]",
        ] {
            assert!(parse_json(json.as_bytes()).is_err(), "{json}");
        }
        let same = |json: &[u8]| {
            let expected = serde_json::from_slice::<Value>(json).unwrap_err().to_string();
            assert_eq!(parse_json(json).unwrap_err().to_string(), expected);
        };
        same(b"{\"a\":");
        same(b"[1,]");
        same(b"[\"\xff\", NaN]");
        same("[".repeat(1000).as_bytes());
        let deep = "[NaN,".repeat(1000);
        assert!(parse_json(deep.as_bytes()).unwrap_err().to_string().contains("recursion"));
    }

    #[test]
    fn json_is_written_as_it_was_read() {
        let json = "{\n  \"a\": [\n    NaN,\n    -Infinity\n  ],\n  \"b\": \"NaN\"\n}\n";
        assert_eq!(write_json(&parse_json(json.as_bytes()).unwrap()), json);
    }
}
