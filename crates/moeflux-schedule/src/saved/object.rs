//! The objects that a session is saved as.
//!
//! **Invariant:** pure. Segments follow each other without gaps from the first token on, and end
//! where other conversations may branch off.

use moeflux::TokenId;
use moeflux_prefix::{ObjectKind, PrefixNamespace, StateNeed, Store};

/// Upper bound on the positions of a segment: another conversation shares whole segments.
pub(crate) const SEGMENT_POSITIONS: usize = 1024;

/// What an object keeps of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedPart {
    pub(crate) kind: ObjectKind,
    /// The first position of a segment; the end of a state.
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// The tokens that need not be computed again because of it: without a state, those since the
    /// one before.
    pub(crate) n_spared: usize,
}

/// A session that is to be saved.
pub(crate) struct SessionOutline<'s> {
    pub(crate) namespace: PrefixNamespace,
    pub(crate) tokens: &'s [TokenId],
    /// Positions where other conversations may branch off.
    pub(crate) cuts: &'s [usize],
    /// Positions whose recurrent state exists, and should be saved, ascending; empty in models
    /// without.
    pub(crate) states: &'s [usize],
    /// A state is not saved if an earlier one spares all but fewer tokens than these.
    pub(crate) n_tokens_min: usize,
}

pub(crate) fn numbers(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

impl SessionOutline<'_> {
    /// Returns what the store lacks of the session, by position.
    pub(crate) fn missing(&self, store: &Store) -> Vec<SavedPart> {
        let tokens = numbers(self.tokens);
        let found = |end: usize, need| store.find(self.namespace, &tokens[..end], need).n_tokens;
        let mut first = found(tokens.len(), StateNeed::NoState);
        let mut missing = Vec::new();
        let mut last = 0;
        for &at in self.states {
            let n_spared = at - last.max(found(at, StateNeed::StateAtEnd));
            if n_spared >= self.n_tokens_min {
                missing.push(SavedPart { kind: ObjectKind::State, first: at, end: at, n_spared });
                last = at;
            }
        }
        while let Some(end) = self.end_of_segment(first) {
            let n_spared = end - first;
            missing.push(SavedPart { kind: ObjectKind::Segment, first, end, n_spared });
            first = end;
        }
        // A state after the segment that leads to it.
        missing.sort_by_key(|it| (it.end, it.kind == ObjectKind::State));
        missing.dedup();
        missing
    }

    /// Returns the end of the segment that begins at `first`; `None` at the end of the session.
    fn end_of_segment(&self, first: usize) -> Option<usize> {
        let regular = (first / SEGMENT_POSITIONS + 1) * SEGMENT_POSITIONS;
        let ends = self.cuts.iter().chain(self.states).copied();
        let ends = ends.chain([regular, self.tokens.len()]);
        ends.filter(|end| (first + 1..=self.tokens.len()).contains(end)).min()
    }
}
