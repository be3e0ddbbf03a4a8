//! What differs from step to step: the rows, whose they are, which logits are wanted; and what
//! comes back from a router.

use std::ops::Range;

use crate::ids::{ExpertIdx, Position, StateId, TokenId};

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub token: TokenId,
    /// Where it stands in its session.
    pub position: Position,
}

/// What rows are for. It says how they are computed where that matters, so that a row's values do
/// not depend on how many others share its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// The newest token of an answer.
    Answer,
    /// Tokens that were there before, such as a prompt's.
    Prompt,
}

/// Rows of one session: they follow each other, at consecutive positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose rows.
    pub state: StateId,
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// What they are for.
    pub kind: RowKind,
    /// Behind how many of its rows the state of recurrent layers is kept: ascending, between none
    /// and all.
    pub marks: Vec<usize>,
}

impl Segment {
    /// Rows of a session, without marks.
    #[must_use]
    pub const fn new(state: StateId, rows: Range<usize>, kind: RowKind) -> Self {
        Self { state, rows, kind, marks: Vec::new() }
    }

    /// The rows from mark to mark, one part more than there are marks.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.marks.iter().map(|mark| self.rows.start + mark);
        let begins = std::iter::once(self.rows.start).chain(ends.clone());
        begins.zip(ends.chain(std::iter::once(self.rows.end))).map(|(begin, end)| begin..end)
    }
}

/// The rows of one step, of one session or of many.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// All rows, segment by segment.
    pub rows: &'a [Row],
    /// Whose rows they are; together they cover all rows in order, each session once.
    pub segments: &'a [Segment],
    /// Rows whose logits are wanted, ascending; at most [`crate::ops::N_OUTPUTS_MAX`] when a plan
    /// over output rows runs.
    pub outputs: &'a [usize],
}

impl Batch<'_> {
    /// Whether all rows are answers'.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        self.segments.iter().all(|segment| segment.kind == RowKind::Answer)
    }
}

/// Which experts each row chose, in ascending index, and how much each counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// Experts per row.
    pub top_k: usize,
    /// `[n_rows, top_k]`, ascending within a row.
    pub experts: Vec<ExpertIdx>,
    /// `[n_rows, top_k]`, in the order of `experts`.
    pub weights: Vec<f32>,
}

impl Routes {
    /// The rows and ranks at which `expert` was chosen, in row order.
    pub fn uses_of(&self, expert: ExpertIdx) -> impl Iterator<Item = (usize, usize)> + '_ {
        let places = self.experts.iter().enumerate().filter(move |&(_, &it)| it == expert);
        places.map(|(place, _)| (place / self.top_k, place % self.top_k))
    }
}
