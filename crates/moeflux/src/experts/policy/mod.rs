//! Which expert leaves when another needs its slot: the one used least often, with decay.
//!
//! [`Lfu`] hears of every admission, use and removal, and names a victim. **Invariant:** pure and
//! deterministic; a slot that is held is never a victim; nothing is allocated but by `resize`, and
//! no call costs more than a logarithm of the slots, or what it walks over once and for all.
//! Knows slots and the place of an expert among all experts; never bytes, layers or leases.
//! Guesses that nobody used are not told to it at all: the table gives their slots away first, so
//! that a guess cannot push out what a demand would keep.

mod lfu;

pub(crate) use lfu::Lfu;

/// An expert's place among all experts of all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyIdx(pub usize);

/// What a policy is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyShape {
    /// Slots to begin with.
    pub n_slots: usize,
    /// Experts of all layers.
    pub n_keys: usize,
    /// Experts that one token asks for, over all layers.
    pub n_uses_per_row: usize,
}

#[cfg(test)]
mod tests;
