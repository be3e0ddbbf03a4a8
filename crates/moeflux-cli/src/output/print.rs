//! Output of results to stdout, whose reader may be gone, and of everything else to stderr.
//!
//! **Invariant:** everything that a command prints goes through here or through the screen of a
//! chat. Control characters and marks that change the order of letters are escaped, whether from
//! names in files, a hub or clients; only the text of an answer that goes to a file or pipe keeps
//! them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};

use moeflux::{Error, Result};
use moeflux_io::is_harmful;

/// Whether standard output still has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderState {
    /// It has one, as far as is known.
    Present,
    /// The reader is gone, as with `head`.
    Gone,
}

/// Prints lines, with harmful characters escaped. It is not an error if the reader is gone.
pub(crate) fn line(text: &str) -> Result<()> {
    piece(&format!("{}\n", escaped(text))).map(|_| ())
}

/// Prints a message that is not a result on stderr, with harmful characters escaped.
#[expect(clippy::print_stderr, reason = "notes and errors go to stderr")]
pub(crate) fn stderr_line(text: &str) {
    eprintln!("{}", escaped(text));
}

/// Escapes harmful characters as in JSON, so that JSON keeps its meaning.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let is_escaped = |letter: char| is_harmful(letter) && !matches!(letter, '\n' | '\t');
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_escaped(letter) {
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

/// Prints text unchanged, and flushes it.
pub(crate) fn piece(text: &str) -> Result<ReaderState> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ReaderState::Gone),
        Err(error) => Err(Error::Input(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(ReaderState::Present),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, expected) in [
            ("a\n\tb \u{e9}\u{8a9e}\u{1f600}", "a\n\tb \u{e9}\u{8a9e}\u{1f600}"),
            ("\x1b[2J\x07\r", "\\u001b[2J\\u0007\\u000d"),
            ("\u{9b}31m\u{202e}x\u{e0041}", "\\u009b31m\\u202ex\\udb40\\udc41"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn json_means_the_same() {
        let all: String = (0..=0x11_0000).filter_map(char::from_u32).collect();
        let value = serde_json::json!({ "a": all });
        for text in [value.to_string(), format!("{value:#}")] {
            let shown = escaped(&text);
            assert!(!shown.contains(|it| is_harmful(it) && it != '\n'));
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }
}
