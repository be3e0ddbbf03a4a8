//! Which expert leaves when another needs its slot: the one used least often, with decay; or, where
//! every token uses all of them in turn, the one used last of those that do not stay.
//!
//! [`Lfu`] is notified of every admission, use and removal, and names a victim. **Invariant:** pure
//! and deterministic; a pinned slot is never a victim; only `resize` allocates. Apart from
//! `begin_step` and `resize`, which may pass over all slots and keys, a call costs at most the
//! logarithm of the number of slots. This module knows slots and expert keys, never bytes, layers
//! or leases. The policy does not see unused guesses: the table gives up their slots first, so a
//! guess cannot evict an expert that a demand would keep.

mod lfu;

pub(crate) use lfu::Lfu;

/// Slots through which experts pass that every token uses in turn and that do not stay: one is
/// computed while the next is read.
pub const N_SLOTS_IN_TURN: usize = 2;

/// An expert's index among all experts of all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyIdx(pub usize);

/// The sizes that a policy is created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyShape {
    /// Initial number of slots.
    pub n_slots: usize,
    /// Experts of all layers.
    pub n_keys: usize,
    /// Experts that one token uses, over all layers.
    pub n_uses_per_row: usize,
}

#[cfg(test)]
mod tests;
