//! JSON as Python writes it, with `NaN`, `Infinity` and `-Infinity` in the place of numbers.
//!
//! **Invariant:** such a value is kept as a text of its own that no getter takes for a number, a
//! name or an absent key; what is JSON without these words is read as by `serde_json` alone, and
//! its errors stay the same.

use std::borrow::Cow;

use serde_json::Value;

/// The words, the longest first where one begins like another.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Stands before a word in the place of a number: it means nothing in texts of any language, and is
/// reserved for uses like this one.
const MARK: char = '\u{fdd0}';

/// Reads JSON.
///
/// # Errors
///
/// Where it is none.
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

/// The word that stands in the place of a number, if this is one.
pub(crate) fn word(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(MARK).filter(|it| WORDS.contains(it))
}

/// Writes a value as it was read, on several lines.
#[must_use]
pub fn write_json(value: &Value) -> String {
    let mut text = format!("{value:#}\n");
    for word in WORDS {
        text = text.replace(&format!("\"{MARK}{word}\""), word);
    }
    text
}

/// The same text with a text for each word that stands alone; unchanged if there is none.
fn with_texts(json: &str) -> Cow<'_, str> {
    let mut changed = String::new();
    let (mut rest, mut is_in_text) = (json, false);
    // Of what was read, what is not copied yet begins here.
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

/// A word at the start of a text, if a value ends behind it: it is no key and no part of a longer
/// word.
fn word_at(text: &str) -> Option<&'static str> {
    let word = WORDS.into_iter().find(|word| text.starts_with(word))?;
    let behind = text.get(word.len()..)?.trim_start_matches([' ', '\t', '\r', '\n']);
    matches!(behind.chars().next(), None | Some(',' | ']' | '}')).then_some(word)
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
    fn words_of_python_stand_for_numbers() {
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
        // A text that only begins like one.
        check_words("[\"\u{fdd0}\", \"\u{fdd0}nan\", NaN]", &[None, None, nan]);
    }

    #[test]
    fn what_python_does_not_read_either_is_refused() {
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
    fn what_is_written_is_what_was_read() {
        let json = "{\n  \"a\": [\n    NaN,\n    -Infinity\n  ],\n  \"b\": \"NaN\"\n}\n";
        assert_eq!(write_json(&parse_json(json.as_bytes()).unwrap()), json);
    }
}
