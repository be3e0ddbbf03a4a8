//! Estimates the memory that parsing a body will take, before it is parsed.
//!
//! A parser turns `[[],[],..]` into a few hundred times its bytes, and a long string into little
//! more than its length. Therefore values are counted as the body arrives. **Invariant:** for valid
//! JSON, counts as many values as a parser makes, keys included.

/// Bytes for each byte of a body: its strings as values, as messages, in the template and in its
/// text. A conversation of one long message measured 7.
const PER_BYTE: usize = 12;
/// Bytes for each byte when all tokens of a text are counted, whatever their number; measured 19.
const PER_COUNTED_BYTE: usize = 24;
/// Bytes for each value: in a list or a map, as a value of the template, and in the text that the
/// template writes around it. A tool with 3,000 properties measured 500.
const PER_VALUE: usize = 640;
/// Bytes for each character that may begin a value in a string that is itself JSON; measured 60.
const PER_STRUCTURAL: usize = 128;
/// Keys whose strings are parsed as JSON again.
const JSON_TEXTS: [&[u8]; 4] = [b"arguments", b"input", b"guided_json", b"json"];
/// For any request.
const FIXED: usize = 512 << 10;
/// Limits on a template's output: per byte of the body, per value, and fixed.
const TEXT_PER_BYTE: usize = 3;
const TEXT_PER_VALUE: usize = 256;
const TEXT_FIXED: usize = 64 << 10;

/// Counts a body's bytes and values as it arrives, and estimates its memory from them.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the state of a scanner")]
pub(crate) struct BodySize {
    pub(crate) n_bytes: usize,
    pub(crate) n_values: usize,
    /// Structural characters in strings that are themselves JSON.
    n_structural: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// Inside a number, or inside `true`, `false` or `null`.
    is_in_word: bool,
    /// Whether the current or next string is itself JSON.
    is_json_text: bool,
    last: LastString,
}

/// The beginning of the last string, which becomes a key if a colon follows.
#[derive(Clone, Copy, Debug, Default)]
struct LastString {
    bytes: [u8; 12],
    len: usize,
}

impl LastString {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
        }
        self.len = self.len.saturating_add(1);
    }

    fn is_one_of(&self, keys: &[&[u8]]) -> bool {
        self.bytes.get(..self.len).is_some_and(|key| keys.contains(&key))
    }
}

impl BodySize {
    /// Counts a chunk of a body.
    pub(crate) fn add(&mut self, chunk: &[u8]) {
        self.n_bytes += chunk.len();
        for byte in chunk {
            match (self.is_in_string, byte) {
                (true, _) if self.is_escaped => self.is_escaped = false,
                (true, b'\\') => self.is_escaped = true,
                (true, b'"') => self.is_in_string = false,
                (true, byte) => {
                    self.last.push(*byte);
                    let is_structural = self.is_json_text && b",[{:".contains(byte);
                    self.n_structural += usize::from(is_structural);
                }
                (false, b'"') => {
                    self.n_values += 1;
                    self.is_in_string = true;
                    self.last = LastString::default();
                }
                (false, b':') => self.is_json_text = self.last.is_one_of(&JSON_TEXTS),
                (false, b',') => self.is_json_text = false,
                (false, b'[' | b'{') => self.n_values += 1,
                (false, b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t') => {}
                (false, _) => {
                    self.n_values += usize::from(!self.is_in_word);
                    self.is_in_word = true;
                    continue;
                }
            }
            self.is_in_word = false;
        }
    }

    /// Returns the memory for making a prompt of the body.
    pub(crate) fn reading_bytes(&self) -> usize {
        self.bytes_with(PER_BYTE)
    }

    /// Returns the memory for finding all tokens of the body.
    pub(crate) fn counting_bytes(&self) -> usize {
        self.bytes_with(PER_COUNTED_BYTE)
    }

    fn bytes_with(&self, per_byte: usize) -> usize {
        let of_values = self.n_values.saturating_mul(PER_VALUE);
        let of_structural = self.n_structural.saturating_mul(PER_STRUCTURAL);
        let of_bytes = self.n_bytes.saturating_mul(per_byte);
        of_bytes.saturating_add(of_values).saturating_add(of_structural).saturating_add(FIXED)
    }

    /// Returns the limit on a template's output.
    pub(crate) fn text_bytes_max(&self) -> usize {
        let of_values = self.n_values.saturating_mul(TEXT_PER_VALUE);
        let of_bytes = self.n_bytes.saturating_mul(TEXT_PER_BYTE);
        of_bytes.saturating_add(of_values).saturating_add(TEXT_FIXED)
    }

    /// Describes the work for messages.
    pub(crate) fn shown(&self) -> String {
        format!("reading a body of {} bytes with {} values", self.n_bytes, self.n_values)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn n_values(json: &Json) -> usize {
        match json {
            Json::Array(values) => 1 + values.iter().map(n_values).sum::<usize>(),
            Json::Object(map) => 1 + map.values().map(|it| 1 + n_values(it)).sum::<usize>(),
            _ => 1,
        }
    }

    #[test]
    fn values_are_counted_as_a_parser_makes_them() {
        for json in [
            json!([]),
            json!({}),
            json!([[], [], [[]]]),
            json!({"a": 1, "b": [1, "x,y[{:", {"c": null}], "\"\\": "\\\","}),
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}),
        ] {
            let text = json.to_string();
            for cut in 0..=text.len() {
                let mut size = BodySize::default();
                size.add(&text.as_bytes()[..cut]);
                size.add(&text.as_bytes()[cut..]);
                let n_values = n_values(&json);
                assert_eq!((size.n_bytes, size.n_values), (text.len(), n_values), "{text}");
            }
        }
    }

    #[test]
    fn texts_that_are_json_count_by_their_signs() {
        let n_structural = |text: &str| {
            let mut size = BodySize::default();
            text.bytes().for_each(|byte| size.add(&[byte]));
            size.n_structural
        };
        assert_eq!(n_structural(r#"{"arguments": "[1,{\"a\":2}]", "text": "[1,2]"}"#), 4);
        assert_eq!(n_structural(r#"{"arguments" : "1,\",", "x": ["1,2", "arguments", "3,4"]}"#), 2);
        assert_eq!(n_structural(r#"{"more arguments": "1,2", "arguments!": ",", "": ","}"#), 0);
        assert_eq!(n_structural(r#"{"json": {"a": "1,2", "guided_json": ",,"}}"#), 2);
    }
}
