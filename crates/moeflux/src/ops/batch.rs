//! The inputs that differ from step to step: rows, their sessions and the wanted logits. Also the
//! output of a router.

use std::ops::Range;

use crate::ids::{ExpertIdx, Position, StateId, TokenId};

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token.
    pub token: TokenId,
    /// Position within its session.
    pub position: Position,
}

/// Purpose of rows. Where it matters, it determines how they are computed, so that a row's values
/// do not depend on how many others share its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// The newest token of an answer.
    Decode,
    /// Tokens known in advance, such as a prompt's.
    Prefill,
}

/// Rows of one session, at consecutive positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Session of the rows.
    pub state: StateId,
    /// Range of rows in the batch.
    pub rows: Range<usize>,
    /// Purpose of the rows.
    pub kind: RowKind,
    /// Numbers of the segment's rows after which the state of recurrent layers is stored:
    /// ascending, above zero and below the number of rows.
    pub marks: Vec<usize>,
    /// The tokens of the session before the segment on which rows of tables depend, as far as there
    /// are any: a few.
    pub earlier: Vec<TokenId>,
}

impl Segment {
    /// Creates a segment without marks and earlier tokens.
    #[must_use]
    pub const fn new(state: StateId, rows: Range<usize>, kind: RowKind) -> Self {
        Self { state, rows, kind, marks: Vec::new(), earlier: Vec::new() }
    }

    /// Returns the rows between marks: one part more than there are marks.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.marks.iter().map(|mark| self.rows.start + mark);
        let begins = std::iter::once(self.rows.start).chain(ends.clone());
        begins.zip(ends.chain(std::iter::once(self.rows.end))).map(|(begin, end)| begin..end)
    }
}

/// The rows of one step, from one session or several.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// All rows, segment by segment.
    pub rows: &'a [Row],
    /// Sessions of the rows. The segments cover all rows in order, each session once.
    pub segments: &'a [Segment],
    /// Rows whose logits are wanted, ascending; at most [`crate::ops::N_OUTPUTS_MAX`] when a plan
    /// over output rows runs.
    pub outputs: &'a [usize],
}

impl Batch<'_> {
    /// Returns whether all rows are answer rows.
    #[must_use]
    pub fn is_decode(&self) -> bool {
        self.segments.iter().all(|segment| segment.kind == RowKind::Decode)
    }
}

/// The experts that each row chose, by ascending index, and their weights.
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
    /// Returns the rows and ranks at which `expert` was chosen, in row order.
    pub fn uses_of(&self, expert: ExpertIdx) -> impl Iterator<Item = (usize, usize)> + '_ {
        let places = self.experts.iter().enumerate().filter(move |&(_, &it)| it == expert);
        places.map(|(place, _)| (place / self.top_k, place % self.top_k))
    }
}
