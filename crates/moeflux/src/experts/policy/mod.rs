//! Which expert leaves when another needs its slot.
//!
//! A policy hears of every admission, use and removal, and names a victim. **Invariant:** pure and
//! deterministic; a slot that is held is never a victim; nothing is allocated but by `resize`, and
//! no call costs more than a logarithm of the slots, or what it walks over once and for all.
//! Knows slots and the place of an expert among all experts; never bytes, layers or leases.
//! Guesses that nobody used are not told to a policy at all: the table gives their slots away
//! first, so that a guess cannot push out what a demand would keep.

mod clock;
mod lfu;
mod list;
mod lru;
mod s3_fifo;

use std::fmt;

use moeflux_io::SlotIdx;

pub(super) use list::{Links, List};

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

/// A rule of eviction. A slot is outside, held (in use or being filled) or idle.
pub(crate) trait Policy: fmt::Debug + Send {
    /// A step of so many rows begins: time passes by rows.
    fn begin_step(&mut self, n_rows: usize);

    /// An expert comes into an outside slot, because `n_uses` rows asked for it. It is held.
    fn admit(&mut self, slot: SlotIdx, key: KeyIdx, n_uses: u32);

    /// `n_uses` rows asked for the expert in a held slot.
    fn hit(&mut self, slot: SlotIdx, n_uses: u32);

    /// An idle slot is no victim from now on.
    fn hold(&mut self, slot: SlotIdx);

    /// A held slot is idle from now on.
    fn let_go(&mut self, slot: SlotIdx);

    /// The idle slot whose expert should leave; it stays until it is removed. `None` if none is
    /// idle.
    fn victim(&mut self) -> Option<SlotIdx>;

    /// The expert of a held or idle slot leaves; the slot is outside.
    fn remove(&mut self, slot: SlotIdx);

    /// There are so many slots from now on. Those that go are outside already.
    fn resize(&mut self, n_slots: usize);
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// Second chance.
    Clock,
    /// Queues for newcomers, for the proven, and for the names of those that left.
    S3Fifo,
    /// Least frequently used, with decay.
    Lfu,
}

impl PolicyKind {
    /// All, in the order of their age.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Clock, Self::Lfu, Self::S3Fifo];

    /// What runs unless told otherwise: `lfu.rs` has the figures.
    pub const DEFAULT: Self = Self::Lfu;

    /// Name for options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Clock => "clock",
            Self::S3Fifo => "s3-fifo",
            Self::Lfu => "lfu",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// An empty policy.
    #[must_use]
    pub(crate) fn build(self, shape: PolicyShape) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(lru::Lru::new(shape)),
            Self::Clock => Box::new(clock::Clock::new(shape)),
            Self::S3Fifo => Box::new(s3_fifo::S3Fifo::new(shape)),
            Self::Lfu => Box::new(lfu::Lfu::new(shape)),
        }
    }
}

#[cfg(test)]
mod tests;
