//! Logits of some rows, in memory that is reused from step to step.

use std::ops::Range;

use crate::ids::TokenId;

/// Logits of a wanted row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Logits<'a> {
    /// One logit per token of the vocabulary.
    All(&'a [f32]),
    /// The largest logits, largest first; of equal logits the one of the lower token.
    Best(&'a [(TokenId, f32)]),
}

/// Logits of wanted rows, in the order of the requests.
#[derive(Debug, Default)]
pub(crate) struct LogitRows {
    rows: Vec<LogitRange>,
    all: Vec<f32>,
    best: Vec<(TokenId, f32)>,
}

/// Location of a row's logits.
#[derive(Clone, Debug)]
enum LogitRange {
    All(Range<usize>),
    Best(Range<usize>),
}

impl LogitRows {
    /// Returns the logits of one row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[must_use]
    pub(crate) fn row(&self, row_idx: usize) -> Logits<'_> {
        match self.rows[row_idx].clone() {
            LogitRange::All(range) => Logits::All(&self.all[range]),
            LogitRange::Best(range) => Logits::Best(&self.best[range]),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Keeps only the first rows.
    pub(crate) fn truncate(&mut self, n_rows: usize) {
        while self.rows.len() > n_rows {
            match self.rows.pop() {
                Some(LogitRange::All(range)) => self.all.truncate(range.start),
                Some(LogitRange::Best(range)) => self.best.truncate(range.start),
                None => {}
            }
        }
    }

    /// Appends a row, to be filled.
    pub(super) fn push_all(&mut self, n_logits: usize) -> &mut [f32] {
        let begin = self.all.len();
        self.all.resize(begin + n_logits, 0.0);
        self.rows.push(LogitRange::All(begin..begin + n_logits));
        &mut self.all[begin..]
    }

    /// Appends a row of which these are the largest logits.
    pub(super) fn push_best(&mut self, best: impl Iterator<Item = (TokenId, f32)>) {
        let begin = self.best.len();
        self.best.extend(best);
        self.rows.push(LogitRange::Best(begin..self.best.len()));
    }
}
