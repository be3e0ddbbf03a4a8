//! Converts the JSON that models write to valid JSON, character by character.
//!
//! Valid JSON passes through unchanged. Invalid text with only one possible meaning is repaired:
//! line breaks and unknown escapes in strings, single quotes, Python's names, keys without quotes,
//! a surplus comma or (before a key) a missing one, unclosed brackets. **Invariant:** once a value
//! is done, the output is one JSON value that other parsers accept; before that it is the beginning
//! of one and does not end inside an escape. This module is independent of calls.

use serde_json::Value as Json;

/// Maximum depth. Other parsers give up at a depth of 128.
const DEPTH_MAX: usize = 100;

/// Maximum length of a word in bytes. At most 767 digits of a number affect its value.
const WORD_BYTES_MAX: usize = 1024;

/// The progress of a value after a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonProgress {
    /// The value continues.
    More,
    /// The value ended with this character.
    Done,
    /// The character cannot stand here.
    Broken,
}

/// Reads one value.
#[derive(Clone, Debug)]
pub(crate) struct JsonReader {
    /// The closing brackets of the open objects and lists.
    open: Vec<char>,
    state: JsonState,
    /// Text that is not certain yet: a word, the beginning of an escape, or a comma and the
    /// whitespace after it.
    buffer: String,
}

/// The position of a [`JsonReader`]: the part that it expects next, or is reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonState {
    /// Expects a value.
    Value,
    /// Expects a value or the end of the array.
    Element,
    /// Expects a key or the end of the object.
    Key,
    Colon,
    /// Expects a comma or a closing bracket.
    After {
        is_blank: bool,
    },
    /// In a string.
    Text {
        is_key: bool,
        quote: char,
    },
    /// In a number, a name, or a key without quotes.
    Word {
        is_key: bool,
    },
    Done,
}

impl JsonReader {
    /// Creates a reader of a value that has not begun.
    pub(crate) fn new() -> Self {
        Self { open: Vec::new(), state: JsonState::Value, buffer: String::new() }
    }

    /// Creates a reader of the rest of an object, after the value of a member.
    pub(crate) fn after_member() -> Self {
        Self { open: vec!['}'], state: JsonState::After { is_blank: false }, buffer: String::new() }
    }

    /// Returns whether the next character belongs to a string.
    pub(crate) fn is_in_text(&self) -> bool {
        matches!(self.state, JsonState::Text { .. })
    }

    /// Returns whether the value is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.state == JsonState::Done
    }

    /// Takes a character and appends the text that became certain to `out`.
    pub(crate) fn push(&mut self, next: char, out: &mut String) -> JsonProgress {
        match self.state {
            JsonState::Text { is_key, quote } => self.text(next, (is_key, quote), out),
            JsonState::Word { .. } if is_word(next) => {
                self.buffer.push(next);
                if self.buffer.len() > WORD_BYTES_MAX {
                    return JsonProgress::Broken;
                }
            }
            JsonState::Word { is_key } => {
                return match self.end_word(is_key, out) {
                    JsonProgress::More => self.push(next, out),
                    other => other,
                };
            }
            _ => return self.between(next, out),
        }
        self.progress()
    }

    /// Ends the input: closes the open brackets if nothing else is missing. Returns whether the
    /// value is complete.
    pub(crate) fn close(&mut self, out: &mut String) -> bool {
        if let JsonState::Word { is_key: false } = self.state
            && self.end_word(false, out) == JsonProgress::Broken
        {
            return false;
        }
        let is_closable = match self.state {
            JsonState::Element | JsonState::Key | JsonState::After { .. } => true,
            JsonState::Done => return true,
            _ => false,
        };
        if is_closable {
            self.buffer.clear();
            out.extend(self.open.drain(..).rev());
            self.state = JsonState::Done;
        }
        is_closable
    }

    fn progress(&self) -> JsonProgress {
        if self.is_done() { JsonProgress::Done } else { JsonProgress::More }
    }

    fn between(&mut self, next: char, out: &mut String) -> JsonProgress {
        if next.is_whitespace() {
            // JSON allows four kinds of whitespace.
            let blank = if matches!(next, '\n' | '\r' | '\t') { next } else { ' ' };
            if self.buffer.is_empty() {
                out.push(blank);
            } else {
                self.buffer.push(blank);
            }
            if let JsonState::After { is_blank } = &mut self.state {
                *is_blank = true;
            }
            return self.progress();
        }
        let is_in_object = self.open.last() == Some(&'}');
        match (self.state, next) {
            (JsonState::Value | JsonState::Element, '{' | '[') => return self.nest(next, out),
            (JsonState::Value | JsonState::Element, '"' | '\'') => {
                self.begin_text(false, next, out);
            }
            (JsonState::Key, '"' | '\'') => self.begin_text(true, next, out),
            (JsonState::Value | JsonState::Element | JsonState::Key, _) if is_word(next) => {
                out.push_str(&std::mem::take(&mut self.buffer));
                self.buffer.push(next);
                self.state = JsonState::Word { is_key: self.state == JsonState::Key };
            }
            (JsonState::Colon, ':') => {
                out.push(':');
                self.state = JsonState::Value;
            }
            (JsonState::After { .. }, ',') => {
                self.buffer.push(',');
                self.state = if is_in_object { JsonState::Key } else { JsonState::Element };
            }
            (JsonState::After { is_blank: true }, '"') if is_in_object => {
                out.push(',');
                self.begin_text(true, next, out);
            }
            (JsonState::After { .. } | JsonState::Key | JsonState::Element, '}' | ']') => {
                return self.close_bracket(next, out);
            }
            _ => return JsonProgress::Broken,
        }
        JsonProgress::More
    }

    fn nest(&mut self, bracket: char, out: &mut String) -> JsonProgress {
        if self.open.len() == DEPTH_MAX {
            return JsonProgress::Broken;
        }
        out.push_str(&std::mem::take(&mut self.buffer));
        out.push(bracket);
        let (closing, state) =
            if bracket == '{' { ('}', JsonState::Key) } else { (']', JsonState::Element) };
        self.open.push(closing);
        self.state = state;
        JsonProgress::More
    }

    /// Closes a bracket and those opened after it. A buffered comma is surplus and dropped.
    fn close_bracket(&mut self, bracket: char, out: &mut String) -> JsonProgress {
        let Some(place) = self.open.iter().rposition(|it| *it == bracket) else {
            return JsonProgress::Broken;
        };
        out.push_str(self.buffer.trim_start_matches(','));
        self.buffer.clear();
        out.extend(self.open.drain(place..).rev());
        self.end_value();
        self.progress()
    }

    fn end_value(&mut self) {
        let is_done = self.open.is_empty();
        self.state = if is_done { JsonState::Done } else { JsonState::After { is_blank: false } };
    }

    fn end_word(&mut self, is_key: bool, out: &mut String) -> JsonProgress {
        let word = std::mem::take(&mut self.buffer);
        if is_key {
            out.extend(["\"", &word, "\""]);
            self.state = JsonState::Colon;
            return JsonProgress::More;
        }
        let Some(value) = literal(&word) else { return JsonProgress::Broken };
        out.push_str(&value);
        self.end_value();
        self.progress()
    }

    fn begin_text(&mut self, is_key: bool, quote: char, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.buffer));
        out.push('"');
        self.state = JsonState::Text { is_key, quote };
    }

    fn text(&mut self, next: char, (is_key, quote): (bool, char), out: &mut String) {
        if !self.buffer.is_empty() {
            self.buffer.push(next);
            let Some((settled, n_bytes)) = escape(&self.buffer) else { return };
            let rest = self.buffer.split_off(n_bytes);
            out.push_str(settled.unwrap_or(&self.buffer));
            self.buffer.clear();
            rest.chars().for_each(|it| self.text(it, (is_key, quote), out));
        } else if next == '\\' {
            self.buffer.push(next);
        } else if next == quote {
            out.push('"');
            if is_key { self.state = JsonState::Colon } else { self.end_value() }
        } else {
            push_escaped(next, out);
        }
    }
}

/// Appends a character of a string, escaped.
pub(crate) fn push_escaped(character: char, out: &mut String) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
        _ => out.push(character),
    }
}

/// Appends a string with its quotes.
pub(crate) fn push_text(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|it| push_escaped(it, out));
    out.push('"');
}

/// Decodes the escape at the start of a text. Returns the text and the length of the escape; `None`
/// if more input is needed.
pub(crate) fn decoded(text: &str) -> Option<(String, usize)> {
    let (settled, n_bytes) = escape(text)?;
    let quoted = format!("\"{}\"", settled.unwrap_or(&text[..n_bytes]));
    let text = serde_json::from_str(&quoted).expect("an escape of JSON");
    Some((text, n_bytes))
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || "+-._".contains(character)
}

/// Returns the JSON value for a word.
fn literal(word: &str) -> Option<String> {
    let name = match word {
        "true" | "True" => "true",
        "false" | "False" => "false",
        "null" | "None" => "null",
        _ => return number(word),
    };
    Some(name.to_owned())
}

/// Returns a number in the syntax of JSON; `None` if the word is not a number or its value is not
/// finite.
fn number(word: &str) -> Option<String> {
    let (sign, digits) = match word.split_at_checked(1) {
        Some(("+", digits)) => ("", digits),
        Some(("-", digits)) => ("-", digits),
        _ => ("", word),
    };
    if digits.starts_with('-') || !digits.bytes().any(|it| it.is_ascii_digit()) {
        return None;
    }
    let zero = if digits.starts_with('.') { "0" } else { "" };
    let after = if digits.ends_with('.') { "0" } else { "" };
    let number = format!("{sign}{zero}{digits}{after}");
    matches!(serde_json::from_str(&number), Ok(Json::Number(_))).then_some(number)
}

/// Length of `\uXXXX` in bytes.
const UNICODE_BYTES: usize = 6;

/// Returns the length of the escape at the start of a text, and its replacement in valid JSON if
/// that differs; `None` if more input is needed.
fn escape(text: &str) -> Option<(Option<&'static str>, usize)> {
    const MALFORMED: (Option<&str>, usize) = (Some("\\\\"), 1);
    let second = || unit(text.get(UNICODE_BYTES..).unwrap_or_default());
    Some(match text[1..].chars().next()? {
        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => (None, 2),
        '\'' => (Some("'"), 2),
        'u' => match unit(text) {
            Utf16Unit::More => return None,
            Utf16Unit::None => MALFORMED,
            Utf16Unit::Character => (None, UNICODE_BYTES),
            Utf16Unit::Low => LONE_SURROGATE,
            Utf16Unit::High => match second() {
                Utf16Unit::More => return None,
                Utf16Unit::Low => (None, 2 * UNICODE_BYTES),
                _ => LONE_SURROGATE,
            },
        },
        _ => MALFORMED,
    })
}

/// Half of a surrogate pair, which parsers refuse.
const LONE_SURROGATE: (Option<&str>, usize) = (Some("\u{fffd}"), UNICODE_BYTES);

/// The meaning of the escape at the start of a text.
enum Utf16Unit {
    /// A character.
    Character,
    /// The first half of a surrogate pair.
    High,
    /// The second half of a surrogate pair.
    Low,
    /// Nothing: the escape is invalid.
    None,
    /// The text may still become an escape.
    More,
}

fn unit(text: &str) -> Utf16Unit {
    const START: &str = "\\u";
    let Some(digits) = text.strip_prefix(START) else {
        return if START.starts_with(text) { Utf16Unit::More } else { Utf16Unit::None };
    };
    let n_digits = digits.bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
    if n_digits < 4 {
        return if n_digits == digits.len() { Utf16Unit::More } else { Utf16Unit::None };
    }
    match u32::from_str_radix(&digits[..4], 16) {
        Ok(0xd800..=0xdbff) => Utf16Unit::High,
        Ok(0xdc00..=0xdfff) => Utf16Unit::Low,
        _ => Utf16Unit::Character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the output, and whether it is complete: at the end of the text, or after closing it.
    fn read(text: &str) -> (String, Option<bool>) {
        let (mut reader, mut out) = (JsonReader::new(), String::new());
        for next in text.chars() {
            if reader.push(next, &mut out) == JsonProgress::Broken {
                return (out, None);
            }
        }
        let is_done = reader.is_done();
        let is_closed = reader.close(&mut out);
        (out, is_closed.then_some(is_done))
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(read(text), (expected.to_owned(), Some(true)), "{text}");
        serde_json::from_str::<Json>(expected).unwrap();
    }

    #[test]
    fn valid_json_is_unchanged() {
        for text in [
            "{}",
            "[]",
            r#"{"a" : [ 1 , -2.5e-3,true , null],"b":{"c":"x\n\"\u00e9 \\ \/"} }"#,
            "\"\u{1f600}\"",
            "{\n  \"a\": \"\\ud83d\\ude00\"\n}",
            r#"[[],{"":""}]"#,
        ] {
            check(text, text);
        }
        let deep = "[".repeat(DEPTH_MAX) + &"]".repeat(DEPTH_MAX);
        check(&deep, &deep);
    }

    #[test]
    fn unambiguous_errors_are_repaired() {
        check("{\"a\": \"x\n\t\u{1}\"}", "{\"a\": \"x\\n\\t\\u0001\"}");
        check(r#"["\d\x\$\'\","]"#, r#"["\\d\\x\\$'\","]"#);
        check("[\"a\\\nb\"]", r#"["a\\\nb"]"#);
        check(
            r#"["\u12x","\u","\ud83d","\ude00","\ud83dx","\ud83d\n","\ud83d\u0041"]"#,
            "[\"\\\\u12x\",\"\\\\u\",\"\u{fffd}\",\"\u{fffd}\",\"\u{fffd}x\",\"\u{fffd}\\n\",\
             \"\u{fffd}\\u0041\"]",
        );
        check(
            "{'a': 'say \"x\"', 'b': [True, False, None]}",
            r#"{"a": "say \"x\"", "b": [true, false, null]}"#,
        );
        check("{a: 1, b_2: 2}", r#"{"a": 1, "b_2": 2}"#);
        check("{\"a\": [1, 2, ], }", "{\"a\": [1, 2 ] }");
        check("{\"a\": 1\n \"b\": 2}", "{\"a\": 1\n ,\"b\": 2}");
        check("{\"a\": [1, 2}", "{\"a\": [1, 2]}");
        check("[+1, .5, 5., -.5]", "[1, 0.5, 5.0, -0.5]");
        check("{\u{a0}}", "{ }");
    }

    #[test]
    fn brackets_that_were_not_closed_are_closed() {
        let closed = |text: &str, expected: &str| {
            assert_eq!(read(text), (expected.to_owned(), Some(false)), "{text}");
        };
        closed("{\"a\": [1, 2", "{\"a\": [1, 2]}");
        closed("{\"a\": [1, {\"b\": 2}", "{\"a\": [1, {\"b\": 2}]}");
        closed("{", "{}");
        closed("{\"a\": \"x\", ", "{\"a\": \"x\"}");
    }

    #[test]
    fn ambiguous_errors_are_refused() {
        for text in [
            r#"{"a": "echo "hi""}"#,
            r#"{"a": hello}"#,
            r#"{"a": 007}"#,
            r#"{"a": 1e999}"#,
            "[.]",
            "[-.]",
            "[+]",
            "[+-5]",
            "[--5]",
            r#"{"a": NaN}"#,
            r#"{"a": 1]}"#,
            r#"["a" "b"]"#,
            r#"{"a"; 1}"#,
            r#"{"a": "#,
            r#"{"a"#,
            r#"{"a": "x"#,
            r#"{"a":: 1}"#,
            "{,}",
            "<",
        ] {
            assert_eq!(read(text).1, None, "{text}");
        }
        assert_eq!(read(&"[".repeat(DEPTH_MAX + 1)).1, None);
        assert_eq!(read(&"1".repeat(WORD_BYTES_MAX + 1)).1, None);
    }
}
