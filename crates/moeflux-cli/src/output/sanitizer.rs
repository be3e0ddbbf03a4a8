//! Makes the text of an answer harmless for a terminal: nothing in it moves the cursor, changes a
//! setting or hides text. Direction marks that languages need are kept.
//!
//! **Invariant:** the only control characters in the output are newlines and tabs; all others are
//! shown, as `^[` or `\u{9b}`. The result does not depend on how the text is split.

/// A filter for text written to a terminal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sanitizer {
    /// The last character was a carriage return, which belongs to a newline if one follows.
    holds_return: bool,
}

impl Sanitizer {
    /// Adds text. Returns the part that is now decided.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        for letter in text.chars() {
            if std::mem::take(&mut self.holds_return) && letter != '\n' {
                shown.push_str("^M");
            }
            self.holds_return = letter == '\r';
            if !self.holds_return {
                show(letter, &mut shown);
            }
        }
        shown
    }

    /// Returns the rest.
    pub(crate) fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.holds_return) { "^M" } else { "" }
    }
}

/// Filters a whole text.
pub(crate) fn sanitized(text: &str) -> String {
    let mut filter = Sanitizer::default();
    let shown = filter.push(text);
    shown + filter.finish()
}

fn show(letter: char, shown: &mut String) {
    match letter {
        '\n' | '\t' => shown.push(letter),
        '\0'..='\u{1f}' => {
            shown.push('^');
            shown.extend(char::from_u32(u32::from(letter) + 0x40));
        }
        '\u{7f}' => shown.push_str("^?"),
        // Terminals also take these for escape sequences; and marks that reverse the order of
        // letters make a line appear to say something else.
        '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            shown.extend(letter.escape_unicode());
        }
        _ => shown.push(letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(sanitized(text), expected);
        let mut filter = Sanitizer::default();
        let mut by_letters = String::new();
        for letter in text.chars() {
            by_letters += &filter.push(letter.encode_utf8(&mut [0; 4]));
        }
        assert_eq!(by_letters + filter.finish(), expected, "by letters");
    }

    #[test]
    fn control_characters_are_shown_and_text_stays() {
        check("a\n\tb \u{e9}\u{8a9e}\u{1f600}", "a\n\tb \u{e9}\u{8a9e}\u{1f600}");
        check("\x1b[2J\x1b]0;x\x07", "^[[2J^[]0;x^G");
        check("a\x08\x7f\0", "a^H^?^@");
        check("\u{9b}31m", "\\u{9b}31m");
        check("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}");
        check("a\r\nb\rc\r\r\nd\r", "a\nb^Mc^M\nd^M");
    }

    #[test]
    fn no_control_character_comes_out() {
        let all: String = (0..=0x2100).filter_map(char::from_u32).collect();
        let is_allowed = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
        assert!(sanitized(&all).chars().all(is_allowed));
    }
}
