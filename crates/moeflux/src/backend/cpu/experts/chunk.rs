//! Inner values of the experts between two exchanges, use by use.
//!
//! **Invariant:** uses are ordered by ascending expert, then by row.

use std::ops::Range;

use crate::ids::ExpertIdx;

/// A chunk of experts, computed between two exchanges of values.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct ExpertChunk {
    /// Ascending, each with the range of its uses within the chunk.
    experts: Vec<(ExpertIdx, Range<usize>)>,
    pub n_inner: usize,
    /// `[use][inner]`, of whole experts.
    pub inner: Vec<f32>,
}

impl ExpertChunk {
    /// Begins a chunk of experts with their numbers of uses. Returns the total number of uses.
    pub(in crate::backend::cpu) fn begin(
        &mut self,
        experts: impl Iterator<Item = (ExpertIdx, usize)>,
        n_inner: usize,
    ) -> usize {
        self.experts.clear();
        let mut end = 0;
        for (expert, n_uses) in experts {
            self.experts.push((expert, end..end + n_uses));
            end += n_uses;
        }
        self.n_inner = n_inner;
        self.inner.clear();
        self.inner.resize(end * n_inner, 0.0);
        end
    }

    pub(in crate::backend::cpu) fn n_uses(&self) -> usize {
        self.experts.last().map_or(0, |(_, uses)| uses.end)
    }

    /// Returns the index of an expert's first use.
    pub(in crate::backend::cpu) fn first_use(&self, expert: ExpertIdx) -> usize {
        let found = self.experts.binary_search_by_key(&expert, |(it, _)| *it);
        let place = found.unwrap_or_else(|_| unreachable!("{expert:?} is not of this wave"));
        self.experts[place].1.start
    }
}
