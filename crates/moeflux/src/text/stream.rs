//! Turns token ids, one at a time, into text that never ends inside a character.
//!
//! Byte-level tokens are bytes; an incomplete character is held back. In other decoders the text of
//! a token depends on its neighbours (a leading space, a byte written as `<0xE4>`), so a short
//! window is decoded with and without its newest tokens, and the difference is the new text.
//! **Invariant:** the concatenated pieces are the text of all shown tokens; any ids are accepted;
//! the cost of a token depends on the window, not on the answer so far.

use crate::ids::TokenId;
use crate::text::tokenizer::Tokenizer;

/// Maximum length of a character in UTF-8.
const CHARACTER_BYTES_MAX: usize = 4;
/// Maximum tokens that wait for a complete character. If there are more, the model does not write
/// UTF-8 and waiting would never end.
const WAITING_TOKENS_MAX: usize = 16;

/// The treatment of special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// They are omitted.
    Hidden,
    /// They are written as in the vocabulary.
    Shown,
}

/// The text of an answer during generation.
#[derive(Clone, Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    special: SpecialText,
    /// Byte-level decoders: bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Other decoders: tokens already output, as context, then tokens held back.
    window: Vec<TokenId>,
    n_context: usize,
    /// The last piece.
    text: String,
}

impl<'t> TextStream<'t> {
    /// Creates an empty stream.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, special: SpecialText) -> Self {
        Self {
            tokenizer,
            special,
            bytes: Vec::new(),
            window: Vec::new(),
            n_context: 0,
            text: String::new(),
        }
    }

    /// Replaces the treatment of special tokens.
    #[must_use]
    pub(crate) fn with_special(self, special: SpecialText) -> Self {
        Self { special, ..self }
    }

    /// Adds a token. Returns the text that is now certain, which is often empty.
    pub fn push(&mut self, token: TokenId) -> &str {
        self.text.clear();
        let hidden = self.special == SpecialText::Hidden && self.tokenizer.is_special(token);
        if !hidden && self.tokenizer.is_byte_level() {
            self.tokenizer.append_bytes(token, &mut self.bytes);
            take_characters(&mut self.bytes, &mut self.text);
        } else if !hidden {
            self.window.push(token);
            self.decode_window(self.window.len() - self.n_context >= WAITING_TOKENS_MAX);
        }
        &self.text
    }

    /// Returns the text held back, with U+FFFD for incomplete characters. The stream is then empty.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.bytes.is_empty() {
            // The bytes held back are the start of one character.
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.bytes.clear();
        }
        if self.window.len() > self.n_context {
            self.decode_window(true);
        }
        self.window.clear();
        self.n_context = 0;
        &self.text
    }

    /// Returns the text held back when an answer was cut off, without an incomplete character at
    /// its end. The stream is then empty.
    pub fn finish_cut(&mut self) -> &str {
        self.bytes.clear();
        self.finish();
        let is_unfinished = |it: &char| *it == char::REPLACEMENT_CHARACTER;
        let of_end = self.text.chars().rev().take(CHARACTER_BYTES_MAX - 1);
        let n_unfinished = of_end.take_while(is_unfinished).count();
        let n_bytes = n_unfinished * char::REPLACEMENT_CHARACTER.len_utf8();
        self.text.truncate(self.text.len() - n_bytes);
        &self.text
    }

    fn decode_window(&mut self, even_unfinished: bool) {
        let before = self.tokenizer.decode(&self.window[..self.n_context]);
        let all = self.tokenizer.decode(&self.window);
        if all.ends_with(char::REPLACEMENT_CHARACTER) && !even_unfinished {
            return;
        }
        // More tokens may change the end of the decoded context; text already output is not
        // revised.
        let new = all.strip_prefix(&before).unwrap_or_else(|| after_common(&all, &before));
        self.text.push_str(new);
        if !new.is_empty() {
            self.window.drain(..self.n_context);
            self.n_context = self.window.len();
        } else if even_unfinished {
            // Drops tokens without text, which could otherwise accumulate and are no useful
            // context.
            self.window.truncate(self.n_context);
        }
    }
}

fn after_common<'a>(all: &'a str, before: &str) -> &'a str {
    let n_common: usize = all
        .chars()
        .zip(before.chars())
        .take_while(|(left, right)| left == right)
        .map(|(left, _)| left.len_utf8())
        .sum();
    &all[n_common..]
}

/// Moves whole characters from `bytes` to `text`. Bytes that cannot start or continue a character
/// become U+FFFD, one per maximal run, as in the standard library's lossy decoding. An incomplete
/// character remains.
fn take_characters(bytes: &mut Vec<u8>, text: &mut String) {
    loop {
        let (n_valid, n_invalid) = match std::str::from_utf8(bytes) {
            Ok(whole) => {
                text.push_str(whole);
                bytes.clear();
                return;
            }
            Err(error) => (error.valid_up_to(), error.error_len()),
        };
        text.push_str(&String::from_utf8_lossy(&bytes[..n_valid]));
        let Some(n_invalid) = n_invalid else {
            bytes.drain(..n_valid);
            return;
        };
        text.push(char::REPLACEMENT_CHARACTER);
        bytes.drain(..n_valid + n_invalid);
    }
}
