//! The last word of a line, while it can still be taken to the next one.
//!
//! Text comes in pieces, and a word is shown as it comes. When a letter of it no longer fits, the
//! word is erased where it stands and written again on the next line. A word that begins a line is
//! left to the terminal, which cuts it at the last column.

use crate::screen::style::{Span, Style, add};

/// More bytes are not written again: marks that take no column could go on without end.
const WORD_BYTES_MAX: usize = 1024;

/// The letters behind the last place where the line may be broken.
#[derive(Debug, Default)]
pub(super) struct Word {
    spans: Vec<Span>,
    n_bytes: usize,
    /// Column of its first letter. At 0 nothing is kept: the word stays where it is.
    column: usize,
}

impl Word {
    /// The line may be broken before this column.
    pub(super) fn begin(&mut self, column: usize) {
        self.spans.clear();
        (self.n_bytes, self.column) = (0, column);
    }

    /// A letter was shown behind the others.
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

    /// The word and its column, if it can be taken to the next line; from now on it begins there.
    pub(super) fn take(&mut self) -> Option<(Vec<Span>, usize)> {
        if self.spans.is_empty() {
            return None;
        }
        let taken = (std::mem::take(&mut self.spans), self.column);
        self.begin(0);
        Some(taken)
    }
}
