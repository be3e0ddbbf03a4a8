//! The last word of a line, while it can still move to the next one.
//!
//! Text is streamed, and a word is shown as it arrives. When a character of it no longer fits, the
//! word is erased and written again on the next line. A word at the start of a line is left to the
//! terminal, which breaks it at the last column.

use crate::output::screen::style::{Span, Style, add};

/// Longer words are not rewritten: zero-width marks could continue without end.
const WORD_BYTES_MAX: usize = 1024;

/// The characters after the last possible line break.
#[derive(Debug, Default)]
pub(super) struct Word {
    spans: Vec<Span>,
    n_bytes: usize,
    /// Column of the first character. At 0 nothing is kept: the word stays in place.
    column: usize,
}

impl Word {
    /// Starts a word at this column, before which the line may be broken.
    pub(super) fn begin(&mut self, column: usize) {
        self.spans.clear();
        (self.n_bytes, self.column) = (0, column);
    }

    /// Adds a character that was shown after the others.
    pub(super) fn push(&mut self, style: Style, letter: char) {
        if self.column == 0 {
            return;
        }
        self.n_bytes += letter.len_utf8();
        if self.n_bytes > WORD_BYTES_MAX {
            self.begin(0);
            return;
        }
        add(&mut self.spans, style, letter.encode_utf8(&mut [0; 4]));
    }

    /// Takes the word and its column, if it can move to the next line, where it then begins.
    pub(super) fn take(&mut self) -> Option<(Vec<Span>, usize)> {
        if self.spans.is_empty() {
            return None;
        }
        let taken = (std::mem::take(&mut self.spans), self.column);
        self.begin(0);
        Some(taken)
    }
}
