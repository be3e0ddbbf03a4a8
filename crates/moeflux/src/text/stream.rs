//! Turns token ids, one at a time, into text that never ends inside a character.
//!
//! Byte-level tokens are bytes: what is no whole character yet waits. Tokens of other decoders
//! mean different text beside different neighbours (a leading space, a byte written as `<0xE4>`),
//! so the text of a short window is decoded with and without its newest tokens, and the difference
//! is what came.
//! **Invariant:** the pieces joined are the text of all tokens that are shown; any ids are
//! accepted; a token costs the window, not the answer so far.

use crate::ids::TokenId;
use crate::text::tokenizer::Tokenizer;

/// Bytes of the longest character in UTF-8.
const CHARACTER_BYTES_MAX: usize = 4;
/// Most tokens that wait for a character to become whole: more means that the model writes no UTF-8
/// and that waiting would never end.
const WAITING_TOKENS_MAX: usize = 16;

/// Whether special tokens become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// They have none.
    Hidden,
    /// They are written as in the vocabulary.
    Shown,
}

/// The text of one answer as it comes.
#[derive(Clone, Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    special: SpecialText,
    /// Byte-level: bytes that are no whole character yet.
    bytes: Vec<u8>,
    /// Other decoders: tokens whose text is out, as context, then tokens that wait.
    window: Vec<TokenId>,
    n_context: usize,
    /// The last piece.
    text: String,
}

impl<'t> TextStream<'t> {
    /// An empty stream.
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

    /// The same with another rule for special tokens.
    #[must_use]
    pub(crate) fn with_special(self, special: SpecialText) -> Self {
        Self { special, ..self }
    }

    /// The text that this token makes certain; often none.
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

    /// What still waited, with U+FFFD for what never became a character. The stream is then empty.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.bytes.is_empty() {
            // All that waits is the start of one character.
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

    /// What still waited, for tokens that would have gone on: without the start of a character at
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
        // A decoder may change the end of the context when more follows: what is out stays out.
        let new = all.strip_prefix(&before).unwrap_or_else(|| after_common(&all, &before));
        self.text.push_str(new);
        if !new.is_empty() {
            self.window.drain(..self.n_context);
            self.n_context = self.window.len();
        } else if even_unfinished {
            // Tokens without text, without end: they are no context either.
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

/// Moves whole characters from `bytes` to `text`. Bytes that cannot start or go on a character
/// become U+FFFD, one for each maximal run, as the standard library's lossy decoding does; an
/// unfinished character stays.
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
