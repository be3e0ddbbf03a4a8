//! Experts that are used twice, with values exchanged between machines in between.
//!
//! **Invariant:** an expert handed out in a chunk keeps its slot until the chunk ends; a chunk has
//! at most as many experts as there are slots.

use crate::experts::stream::{CurrentRequest, ExpertStream, SlotGroup};
use crate::ids::ExpertIdx;

impl ExpertStream {
    /// Keeps at least `n_experts` slots, however short memory is.
    pub(in crate::experts) fn reserve_for_chunks(&mut self, n_experts: usize) {
        self.pressure.set_least(n_experts);
    }

    pub(in crate::experts) fn begin_chunk(&mut self, end: ExpertIdx) {
        self.request.chunk_end = Some(end);
    }

    /// Returns all experts handed out in this chunk.
    pub(in crate::experts) fn chunk(&mut self) -> SlotGroup<'_> {
        let Self { memory, layouts, request, .. } = self;
        let CurrentRequest { last_group, earlier_groups, .. } = request;
        earlier_groups.append(last_group);
        SlotGroup { memory, layouts, experts: earlier_groups, is_lasting: false }
    }

    pub(in crate::experts) fn end_chunk(&mut self) {
        self.request.chunk_end = None;
        self.release_last_group();
        self.release_earlier_groups();
    }

    /// Returns whether no expert that may be handed out is demanded or on its way.
    pub(super) fn is_chunk_over(&self) -> bool {
        let CurrentRequest { pending, demands, chunk_end, .. } = &self.request;
        let pending = pending.iter().map(|it| it.expert);
        let mut experts = pending.chain(demands.iter().map(|it| it.expert));
        !experts.any(|expert| chunk_end.is_none_or(|end| expert < end))
    }
}
