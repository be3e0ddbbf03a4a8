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

/// Rows of one session: they follow each other, at consecutive positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose rows.
    pub state: StateId,
    /// Which rows of the batch.
    pub rows: Range<usize>,
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
