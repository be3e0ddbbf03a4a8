//! Results on stdout, where a reader may have left, and what is said besides on stderr.
//!
//! **Invariant:** all that a command prints goes through here or through the screen of a chat.
//! Nothing but the text of an answer, where that goes to a file or pipe, has control characters or
//! marks that change the order of letters: names in files, what a hub says, what clients ask for.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};

use moeflux::{Error, Result};
use moeflux_io::is_harmful;

/// Whether anybody reads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// As far as is known.
    Reads,
    /// It has what it wanted, as `head` does.
    Left,
}

/// Prints lines, made harmless. A reader who left early has what it wanted.
pub(crate) fn line(text: &str) -> Result<()> {
    piece(&format!("{}\n", written_out(text))).map(|_| ())
}

/// Says something that is no result, made harmless.
#[expect(clippy::print_stderr, reason = "what a command says besides its result goes there")]
pub(crate) fn aside(text: &str) {
    eprintln!("{}", written_out(text));
}

/// Lines in which harmful characters are written out as in JSON, so that JSON means the same.
pub(crate) fn written_out(text: &str) -> Cow<'_, str> {
    let is_written_out = |letter: char| is_harmful(letter) && !matches!(letter, '\n' | '\t');
    if !text.contains(is_written_out) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_written_out(letter) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _infallible = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(letter);
        }
    }
    shown.into()
}

/// Prints text as it is, at once.
pub(crate) fn piece(text: &str) -> Result<Reader> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(error) => Err(Error::Input(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(Reader::Reads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        for (text, expected) in [
            ("a\n\tb \u{e9}\u{8a9e}\u{1f600}", "a\n\tb \u{e9}\u{8a9e}\u{1f600}"),
            ("\x1b[2J\x07\r", "\\u001b[2J\\u0007\\u000d"),
            ("\u{9b}31m\u{202e}x\u{e0041}", "\\u009b31m\\u202ex\\udb40\\udc41"),
        ] {
            assert_eq!(written_out(text), expected);
        }
    }

    #[test]
    fn json_means_the_same() {
        let all: String = (0..=0x11_0000).filter_map(char::from_u32).collect();
        let value = serde_json::json!({ "a": all });
        for text in [value.to_string(), format!("{value:#}")] {
            let shown = written_out(&text);
            assert!(!shown.contains(|it| is_harmful(it) && it != '\n'));
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }
}
