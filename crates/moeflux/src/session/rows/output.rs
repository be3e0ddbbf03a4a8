//! The output of a step.

use crate::forward::{LogitRows, Logits};
use crate::ids::Position;

/// The row that logits belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputOf {
    /// Index of the feed.
    pub feed_idx: usize,
    /// Position of the token in its session.
    pub position: Position,
}

/// The logits of a step's wanted rows, in the order of the feeds. When reused from step to step, it
/// allocates nothing per token.
#[derive(Debug, Default)]
pub struct StepOutput {
    pub(in crate::session) rows: Vec<OutputOf>,
    pub(in crate::session) logits: LogitRows,
}

impl StepOutput {
    /// Yields the rows and their logits.
    pub fn iter(&self) -> impl Iterator<Item = (OutputOf, Logits<'_>)> {
        self.rows.iter().enumerate().map(|(row_idx, of)| (*of, self.logits.row(row_idx)))
    }

    /// Returns the logits of a feed's last wanted row.
    #[must_use]
    pub fn last_of(&self, feed_idx: usize) -> Option<Logits<'_>> {
        let row_idx = self.rows.iter().rposition(|of| of.feed_idx == feed_idx)?;
        Some(self.logits.row(row_idx))
    }

    /// Removes the rows and keeps the memory for others.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.logits.clear();
    }
}
