//! Escapes external text (names in files, a server's messages) for one line on a terminal.
//!
//! **Invariant:** the output has no line end, no control character, and no character that changes
//! the text direction. It is only slightly longer than the limit. Backslashes are not escaped,
//! because paths contain them: the text is for people and cannot be parsed back.

use std::fmt::{self, Write as _};

/// Limit for a name of a file, a tensor, a branch.
pub const NAME_CHARS_MAX: usize = 200;

/// Limit for a message, which may contain several such names and a remedy.
pub const MESSAGE_CHARS_MAX: usize = 4000;

/// A text for display, cut at a number of characters.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<'a> {
    text: &'a str,
    n_chars_max: usize,
}

impl<'a> OneLine<'a> {
    /// Limits `text` to `n_chars_max` characters.
    #[must_use]
    pub fn new(text: &'a str, n_chars_max: usize) -> Self {
        Self { text, n_chars_max }
    }

    /// Limits a name.
    #[must_use]
    pub fn name(text: &'a str) -> Self {
        Self::new(text, NAME_CHARS_MAX)
    }

    /// Limits a message.
    #[must_use]
    pub fn message(text: &'a str) -> Self {
        Self::new(text, MESSAGE_CHARS_MAX)
    }
}

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut n_chars = 0;
        for (at, letter) in self.text.char_indices() {
            let is_harmful = is_harmful(letter);
            n_chars += if is_harmful { letter.escape_default().len() } else { 1 };
            if n_chars > self.n_chars_max {
                let n_left_bytes = self.text.len() - at;
                return write!(f, ".. ({n_left_bytes} more bytes)");
            }
            match is_harmful {
                true => write!(f, "{}", letter.escape_default())?,
                false => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Returns whether a character ends a line, moves the cursor or starts such a sequence, hides what
/// follows, or changes the text direction.
#[must_use]
pub fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, expected) in [
            ("model.layers.0.\u{e9}\u{8a9e}\u{1f600}", "model.layers.0.\u{e9}\u{8a9e}\u{1f600}"),
            ("a\x1b[2Jb\x07", "a\\u{1b}[2Jb\\u{7}"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("a\u{202e}b\u{2066}c\u{200f}", "a\\u{202e}b\\u{2066}c\\u{200f}"),
            ("a\r\nb\u{2028}c", "a\\r\\nb\\u{2028}c"),
            ("C:\\models\\'x' \"y\"", "C:\\models\\'x' \"y\""),
            // Combined characters stay together: joined emoji, separate accents.
            ("e\u{301} \u{1f469}\u{200d}\u{1f680}", "e\u{301} \u{1f469}\u{200d}\u{1f680}"),
        ] {
            assert_eq!(OneLine::name(text).to_string(), expected);
        }
    }

    #[test]
    fn long_texts_are_cut_with_a_note() {
        let whole = "x".repeat(NAME_CHARS_MAX);
        assert_eq!(OneLine::name(&whole).to_string(), whole);
        let long = "x".repeat(1 << 20);
        let expected = format!("{whole}.. ({} more bytes)", (1 << 20) - NAME_CHARS_MAX);
        assert_eq!(OneLine::name(&long).to_string(), expected);
        // Escaped characters count with their escaped length.
        let harmful = "\x1b".repeat(NAME_CHARS_MAX);
        assert!(OneLine::name(&harmful).to_string().len() < NAME_CHARS_MAX + 30);
        assert_eq!(OneLine::message(&long).to_string().len(), MESSAGE_CHARS_MAX + 23);
    }

    #[test]
    fn no_control_character_comes_out() {
        let all: String = (0..=0x11_0000).filter_map(char::from_u32).collect();
        let shown = OneLine::new(&all, usize::MAX).to_string();
        assert!(!shown.contains(is_harmful));
    }
}
