//! Experts that are used twice, with values exchanged between machines in between.
//!
//! **Invariant:** an expert handed out in a wave keeps its slot until the wave ends, and a wave has
//! at most as many experts as there are slots.

use crate::experts::stream::{Current, Group, Stream};
use crate::ids::ExpertIdx;

impl Stream {
    /// Keeps at least `n_experts` slots, however short memory is.
    pub(in crate::experts) fn hold_waves(&mut self, n_experts: usize) {
        self.pressure.set_least(n_experts);
    }

    pub(in crate::experts) fn begin_wave(&mut self, end: ExpertIdx) {
        self.request.wave_end = Some(end);
    }

    /// Returns all experts handed out in this wave.
    pub(in crate::experts) fn wave(&mut self) -> Group<'_> {
        let Self { memory, layouts, request, .. } = self;
        let Current { given, held, .. } = request;
        held.append(given);
        Group { memory, layouts, taken: held, is_lasting: false }
    }

    pub(in crate::experts) fn end_wave(&mut self) {
        self.request.wave_end = None;
        self.release_given();
        self.release_held();
    }

    /// Returns whether no expert that may be handed out is wanted or on its way.
    pub(super) fn is_wave_over(&self) -> bool {
        let Current { pending, wanted, wave_end, .. } = &self.request;
        let pending = pending.iter().map(|it| it.expert);
        let mut experts = pending.chain(wanted.iter().map(|it| it.expert));
        !experts.any(|expert| wave_end.is_none_or(|end| expert < end))
    }
}
