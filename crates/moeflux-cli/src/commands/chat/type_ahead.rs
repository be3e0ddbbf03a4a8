//! Text typed while an answer is generated: turns the bytes of keys into the start of the next
//! message.
//!
//! Enter completes the message; typing after it begins another line. Cursor keys have no effect
//! here. Ctrl-D with no text ends the chat after the answer. **Invariant:** the text is UTF-8
//! without control characters other than line ends; the result does not depend on how the bytes are
//! split.

/// Upper bound on the text; further input is ignored.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Upper bound on the part of the last line that is examined for display: wider than any terminal.
const SHOWN_BYTES_MAX: usize = 4 << 10;

const CTRL_C: u8 = 0x03;
const CTRL_D: u8 = 0x04;
const CTRL_U: u8 = 0x15;
const CTRL_W: u8 = 0x17;
const ESCAPE: u8 = 0x1b;
const BACKSPACES: [u8; 2] = [0x08, 0x7f];
const ENTERS: [u8; 2] = [b'\r', b'\n'];

/// The message that is typed while an answer is generated.
#[derive(Clone, Debug, Default)]
pub(crate) struct TypeAhead {
    text: String,
    is_whole: bool,
    is_end: bool,
    sequence: EscapeSequence,
    /// The first bytes of an incomplete character.
    letter: Vec<u8>,
}

/// The position within a key's escape sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EscapeSequence {
    #[default]
    None,
    Escape,
    /// One more byte follows.
    Last,
    /// Bytes follow until a final byte.
    Long,
}

impl TypeAhead {
    /// Processes bytes of keys. Returns whether Ctrl-C was among them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        let mut stops = false;
        for byte in bytes {
            stops |= self.byte(*byte);
        }
        stops
    }

    /// Takes the text. Returns it and whether it is to be sent.
    pub(crate) fn take(&mut self) -> (String, bool) {
        let Self { mut text, is_whole, .. } = std::mem::take(self);
        if is_whole {
            text.truncate(text.trim_end_matches('\n').len());
        }
        (text, is_whole)
    }

    /// Returns the last line, if any text was typed; only the end of a very long line.
    pub(crate) fn last_line(&self) -> Option<&str> {
        let begin = self.text.len().saturating_sub(SHOWN_BYTES_MAX);
        let end = &self.text[self.text.ceil_char_boundary(begin)..];
        (!self.text.is_empty()).then(|| end.rsplit('\n').next().unwrap_or_default())
    }

    /// Returns whether the text is to be sent as it is.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns whether the chat ends after the answer.
    pub(crate) fn is_end(&self) -> bool {
        self.is_end
    }

    fn byte(&mut self, byte: u8) -> bool {
        match (self.sequence, byte) {
            (EscapeSequence::Escape, b'[') => self.sequence = EscapeSequence::Long,
            (EscapeSequence::Escape, b'O') => self.sequence = EscapeSequence::Last,
            (EscapeSequence::Escape, _) => {
                self.sequence = EscapeSequence::None;
                if ENTERS.contains(&byte) {
                    self.add('\n');
                }
            }
            (EscapeSequence::Last, _) | (EscapeSequence::Long, 0x40..=0x7e) => {
                self.sequence = EscapeSequence::None;
            }
            (EscapeSequence::Long, _) => {}
            (EscapeSequence::None, CTRL_C) => return true,
            (EscapeSequence::None, CTRL_D) => self.is_end |= self.text.is_empty(),
            (EscapeSequence::None, ESCAPE) => self.sequence = EscapeSequence::Escape,
            (EscapeSequence::None, _) if ENTERS.contains(&byte) => self.enter(),
            (EscapeSequence::None, _) if BACKSPACES.contains(&byte) => self.edit(|text| {
                text.pop();
            }),
            (EscapeSequence::None, CTRL_U) => self.edit(|text| {
                text.truncate(text.rfind('\n').map_or(0, |at| at + 1));
            }),
            (EscapeSequence::None, CTRL_W) => self.edit(|text| {
                let rest = text.trim_end_matches(' ');
                text.truncate(rest.rfind([' ', '\n']).map_or(0, |at| at + 1));
            }),
            (EscapeSequence::None, b'\t') => self.add(' '),
            (EscapeSequence::None, 0..0x20) => {}
            (EscapeSequence::None, _) => self.letter(byte),
        }
        false
    }

    fn edit(&mut self, edit: impl FnOnce(&mut String)) {
        self.is_whole = false;
        edit(&mut self.text);
    }

    /// Handles Enter. After a backslash, the message continues on the next line.
    fn enter(&mut self) {
        if self.text.ends_with('\\') {
            self.text.pop();
            self.text.push('\n');
        } else if self.is_whole {
            // An empty line, if more text follows.
            self.text.push('\n');
        } else {
            self.is_whole = !self.text.trim().is_empty();
        }
    }

    fn letter(&mut self, byte: u8) {
        self.letter.push(byte);
        match std::str::from_utf8(&self.letter) {
            Ok(letter) => {
                let letter = letter.chars().next();
                self.letter.clear();
                letter.filter(|it| !it.is_control()).into_iter().for_each(|it| self.add(it));
            }
            Err(error) if error.error_len().is_some() => self.letter.clear(),
            Err(_) => {}
        }
    }

    fn add(&mut self, letter: char) {
        self.is_end = false;
        if std::mem::take(&mut self.is_whole) {
            self.text.push('\n');
        }
        if self.text.len() < TEXT_BYTES_MAX {
            self.text.push(letter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(keys: &str, text: &str, is_whole: bool) {
        let mut type_ahead = TypeAhead::default();
        assert!(!type_ahead.push(keys.as_bytes()), "{keys:?}");
        assert_eq!(type_ahead.take(), (text.to_owned(), is_whole), "{keys:?}");
        let mut by_bytes = TypeAhead::default();
        keys.bytes().for_each(|byte| assert!(!by_bytes.push(&[byte])));
        assert_eq!(by_bytes.take(), (text.to_owned(), is_whole), "{keys:?} by bytes");
    }

    #[test]
    fn keys_become_the_next_message() {
        check("abc", "abc", false);
        check("a\u{e9}\u{8a9e}\u{1f600}", "a\u{e9}\u{8a9e}\u{1f600}", false);
        check("abc\r", "abc", true);
        check("abc\rd", "abc\nd", false);
        check("abc\rd\r", "abc\nd", true);
        check("abc\r\r\rd", "abc\n\n\nd", false);
        check("abc\r\r", "abc", true);
        check("a\x1b\rb\r", "a\nb", true);
        check("a\\\rb", "a\nb", false);
        check("\r\r", "", false);
        check("", "", false);
    }

    #[test]
    fn keys_that_edit_do_so() {
        check("abc\x7fd", "abd", false);
        check("a\u{e9}\x7f", "a", false);
        check("ab cd \x17e", "ab e", false);
        check("ab\x1b\rcd\x15e", "ab\ne", false);
        check("ab\r\x7f", "a", false);
        check("\x7f", "", false);
    }

    #[test]
    fn other_keys_have_no_effect() {
        check("a\x1b[A\x1b[1;5Cb\x1bOPc\x1bxd\x04\x1ae", "abcde", false);
        check("\x1b[200~two\rlines\x1b[201~", "two\nlines", false);
        check("a\tb", "a b", false);
        let mut type_ahead = TypeAhead::default();
        type_ahead.push(b"a\xff\xc3b");
        assert_eq!(type_ahead.take().0, "a");
        type_ahead.push(b"\xc3(x");
        assert_eq!(type_ahead.take().0, "x");
    }

    #[test]
    fn ctrl_c_is_reported_and_typed_text_stays() {
        let mut type_ahead = TypeAhead::default();
        assert!(type_ahead.push(b"ab\x03c"));
        assert_eq!(type_ahead.last_line(), Some("abc"));
    }

    #[test]
    fn ctrl_d_ends_the_chat_unless_something_is_typed() {
        let is_end = |keys: &str| {
            let mut type_ahead = TypeAhead::default();
            type_ahead.push(keys.as_bytes());
            type_ahead.is_end()
        };
        assert!(is_end("\x04") && is_end("ab\x15\x04") && is_end("\x04\r"));
        assert!(!is_end("") && !is_end("ab\x04") && !is_end("ab\r\x04") && !is_end("\x04a"));
    }

    #[test]
    fn there_is_a_limit() {
        let mut type_ahead = TypeAhead::default();
        type_ahead.push(&vec![b'x'; TEXT_BYTES_MAX + 9]);
        assert_eq!(type_ahead.last_line().map(str::len), Some(SHOWN_BYTES_MAX));
        assert_eq!(type_ahead.take().0.len(), TEXT_BYTES_MAX);
        type_ahead.push("\u{e9}".repeat(SHOWN_BYTES_MAX).as_bytes());
        type_ahead.push(b"x");
        assert_eq!(
            type_ahead.last_line().map(str::len),
            Some(SHOWN_BYTES_MAX - 1),
            "whole letters"
        );
    }
}
