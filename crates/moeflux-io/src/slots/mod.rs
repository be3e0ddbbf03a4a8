//! Slots: equal ranges of a few large slabs of memory, filled by reads and then read by many.
//!
//! **Invariant:** while a slot is being filled nobody can read it, and while anybody reads it no
//! filling can begin: `begin_fill` borrows the memory exclusively, and only slots that are ready
//! give out their bytes. A slab lives as long as any [`Piece`] of it, whoever holds that.
//! Knows bytes only; which record lies in which slot is somebody else's table.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::aligned::{AlignedMemory, HUGE_PAGE_BYTES};

#[cfg(test)]
mod tests;

/// Slots begin at multiples of this within their slab: the largest page of the machines in use
/// (Apple silicon), and a multiple of every block size.
pub const SLOT_ALIGN: usize = 16 << 10;

/// One slot, from 0. Slots of a slab have neighbouring numbers, and keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIdx(pub usize);

/// The place of one slab, from 0. A place whose slab was given back is free for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIdx(pub usize);

/// What a slot is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It has no memory.
    Absent,
    /// It holds nothing of value.
    Empty,
    /// Reads are writing it.
    Filling,
    /// It holds what was read.
    Ready,
}

/// A stretch of memory that is asked for and given back as a whole. Clones are handles to the same
/// memory and keep it.
#[derive(Clone)]
pub struct Slab(Arc<SlabMemory>);

struct SlabMemory {
    /// Parts of it are written while others are read.
    memory: AlignedMemory,
    /// How many pieces of each slot are out.
    n_pieces: Box<[AtomicU32]>,
}

impl Slab {
    /// Its size.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.memory.len_bytes()
    }

    /// Its first byte, for devices that read it where it lies: only what lies in slots that are
    /// ready, and that nobody fills meanwhile.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.0.memory.address()
    }

    /// The address of one of its bytes, or of its end.
    pub(crate) fn byte(&self, offset_bytes: usize) -> *mut u8 {
        assert!(offset_bytes <= self.len_bytes(), "a byte of the slab");
        self.0.memory.address().as_ptr().wrapping_add(offset_bytes)
    }

    /// Whether both are handles to the same memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
impl Slab {
    /// Whether this is the only handle.
    pub(crate) fn is_sole(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({} bytes)", self.len_bytes())
    }
}

/// All slots of one size.
#[derive(Debug)]
pub struct SlotMemory {
    slot_bytes: usize,
    stride_bytes: usize,
    n_slots_per_slab: usize,
    /// The least that a slab takes.
    slab_bytes_min: usize,
    slabs: Vec<Option<Slab>>,
    /// Of every slot of every place, in order.
    states: Vec<SlotState>,
}

impl SlotMemory {
    /// Slots of `slot_bytes`, in slabs as large as `slab_bytes` has room for, at least one slot;
    /// no slab yet.
    ///
    /// # Panics
    ///
    /// If a slot would have no bytes or a slab more than memory can have.
    #[must_use]
    pub fn new(slot_bytes: usize, slab_bytes: usize) -> Self {
        assert!(slot_bytes > 0, "a slot has bytes");
        let stride_bytes = slot_bytes.checked_next_multiple_of(SLOT_ALIGN).expect("a slot fits");
        let n_slots_per_slab = (slab_bytes / stride_bytes).max(1);
        let slab_bytes_min = HUGE_PAGE_BYTES;
        let (slabs, states) = (Vec::new(), Vec::new());
        Self { slot_bytes, stride_bytes, n_slots_per_slab, slab_bytes_min, slabs, states }
    }

    /// Slots of `slot_bytes` without gaps between them, `n_slots_per_slab` in a slab that takes no
    /// more; no slab yet. They begin anywhere: for drives without blocks.
    ///
    /// # Panics
    ///
    /// If a slot would have no bytes, or a slab no slots.
    #[must_use]
    pub fn without_gaps(slot_bytes: usize, n_slots_per_slab: usize) -> Self {
        assert!(slot_bytes > 0 && n_slots_per_slab > 0, "slots have bytes, and slabs slots");
        let (slabs, states) = (Vec::new(), Vec::new());
        let (stride_bytes, slab_bytes_min) = (slot_bytes, 0);
        Self { slot_bytes, stride_bytes, n_slots_per_slab, slab_bytes_min, slabs, states }
    }

    /// What a slot holds.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// What a slab takes from the system, once its pages have been touched; one huge page at least,
    /// where slots have gaps.
    #[must_use]
    pub fn slab_bytes(&self) -> usize {
        (self.stride_bytes * self.n_slots_per_slab).max(self.slab_bytes_min)
    }

    /// How many slots a slab has.
    #[must_use]
    pub fn n_slots_per_slab(&self) -> usize {
        self.n_slots_per_slab
    }

    /// How many slabs there are.
    #[must_use]
    pub fn n_slabs(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    /// How many slots have memory.
    #[must_use]
    pub fn n_slots(&self) -> usize {
        self.n_slabs() * self.n_slots_per_slab
    }

    /// The slots of the slab at `place`.
    #[must_use]
    pub fn slots_of(&self, place: SlabIdx) -> Range<usize> {
        let first = place.0 * self.n_slots_per_slab;
        first..first + self.n_slots_per_slab
    }

    /// Where `slot` lies.
    #[must_use]
    pub fn slab_of(&self, slot: SlotIdx) -> SlabIdx {
        SlabIdx(slot.0 / self.n_slots_per_slab)
    }

    /// The slab at `place`, for drives that want to know of it.
    #[must_use]
    pub fn slab(&self, place: SlabIdx) -> Option<&Slab> {
        self.slabs.get(place.0)?.as_ref()
    }

    /// The slabs that there are, in order.
    pub fn slabs(&self) -> impl Iterator<Item = (SlabIdx, &Slab)> {
        let places = (0..).map(SlabIdx).zip(&self.slabs);
        places.filter_map(|(place, slab)| Some((place, slab.as_ref()?)))
    }

    /// One slab more, all of its slots empty, at the first free place; `None` if the system has no
    /// room for it.
    pub fn grow(&mut self) -> Option<SlabIdx> {
        let n_slots = self.n_slots_per_slab;
        let slab_bytes = self.stride_bytes.checked_mul(n_slots)?;
        let memory = AlignedMemory::zeroed(slab_bytes.max(self.slab_bytes_min))?;
        let n_pieces = (0..n_slots).map(|_| AtomicU32::new(0)).collect();
        let slab = Slab(Arc::new(SlabMemory { memory, n_pieces }));
        let place = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
        if place == self.slabs.len() {
            self.slabs.push(None);
            self.states.resize(self.slabs.len() * n_slots, SlotState::Absent);
        }
        self.slabs[place] = Some(slab);
        self.states[place * n_slots..(place + 1) * n_slots].fill(SlotState::Empty);
        Some(SlabIdx(place))
    }

    /// Gives the slab at `place` back to the system; what its slots held is lost.
    ///
    /// # Panics
    ///
    /// If there is none, if one of its slots is being filled, or if somebody still holds a handle
    /// to it (a drive that was not told by `slab_removed`): its memory would not go.
    pub fn shrink(&mut self, place: SlabIdx) {
        let slots = self.slots_of(place);
        let states = &mut self.states[slots];
        assert!(!states.contains(&SlotState::Filling), "no slot of the slab is being filled");
        states.fill(SlotState::Absent);
        let slab = self.slabs[place.0].take().expect("the slab is there");
        let memory = Arc::into_inner(slab.0);
        assert!(memory.is_some(), "no drive and no piece holds the slab");
    }

    /// What `slot` is good for.
    #[must_use]
    pub fn state(&self, slot: SlotIdx) -> SlotState {
        self.states.get(slot.0).copied().unwrap_or(SlotState::Absent)
    }

    /// The bytes of a slot.
    ///
    /// # Panics
    ///
    /// If it is not ready.
    #[must_use]
    pub fn bytes(&self, slot: SlotIdx) -> &[u8] {
        assert!(self.state(slot) == SlotState::Ready, "{slot:?} is {:?}", self.state(slot));
        let (slab, _, start) = self.find(slot);
        // SAFETY: the slot's range lies within its slab, whose bytes are all initialised, and the
        // slab lives as long as `self`. Nobody writes it: it is ready, so that no piece of it is
        // out, and a filling can begin only when this borrow of `self` has ended.
        unsafe { std::slice::from_raw_parts(slab.byte(start), self.slot_bytes) }
    }

    /// Gives `slot` to a reader; what it held is lost.
    ///
    /// # Panics
    ///
    /// If it has no memory or is being filled already.
    pub fn begin_fill(&mut self, slot: SlotIdx) -> Filling {
        let state = self.state(slot);
        assert!(matches!(state, SlotState::Empty | SlotState::Ready), "{slot:?} is {state:?}");
        self.states[slot.0] = SlotState::Filling;
        let (slab, place, start_bytes) = self.find(slot);
        let memory = SlotRange { slab: slab.clone(), place, start_bytes };
        Filling { memory, slot, len_bytes: self.stride_bytes, n_taken_bytes: 0 }
    }

    /// Ends a filling: the slot is ready.
    ///
    /// # Panics
    ///
    /// If a piece of it is still out, or the filling is not of this memory.
    #[expect(clippy::needless_pass_by_value, reason = "a filling ends once")]
    pub fn finish(&mut self, filling: Filling) {
        self.end(&filling, SlotState::Ready);
    }

    /// Ends a filling that came to nothing: the slot is empty.
    ///
    /// # Panics
    ///
    /// As [`SlotMemory::finish`].
    #[expect(clippy::needless_pass_by_value, reason = "a filling ends once")]
    pub fn abandon(&mut self, filling: Filling) {
        self.end(&filling, SlotState::Empty);
    }

    fn end(&mut self, filling: &Filling, state: SlotState) {
        let slot = filling.slot;
        let slab = self.slab(self.slab_of(slot)).expect("a filling's slab is there");
        assert!(slab.is_same(&filling.memory.slab), "the filling is of this memory");
        assert!(self.state(slot) == SlotState::Filling, "{slot:?} is {:?}", self.state(slot));
        assert!(filling.n_pieces() == 0, "{slot:?}: pieces of it are still out");
        self.states[slot.0] = state;
    }

    /// The slab of a slot that has memory, which of its slots it is, and where that begins.
    fn find(&self, slot: SlotIdx) -> (&Slab, usize, usize) {
        let slab = self.slab(self.slab_of(slot)).expect("the slot has memory");
        let place = slot.0 % self.n_slots_per_slab;
        (slab, place, place * self.stride_bytes)
    }
}

/// A slot's memory, without a claim to it.
#[derive(Clone, Debug)]
struct SlotRange {
    slab: Slab,
    place: usize,
    start_bytes: usize,
}

impl SlotRange {
    fn n_pieces(&self) -> &AtomicU32 {
        &self.slab.0.n_pieces[self.place]
    }
}

/// The right to write one slot. Dropped without [`SlotMemory::finish`] or
/// [`SlotMemory::abandon`], its slot stays closed for good.
#[derive(Debug)]
#[must_use = "its slot stays closed until the filling is finished or abandoned"]
pub struct Filling {
    memory: SlotRange,
    slot: SlotIdx,
    len_bytes: usize,
    n_taken_bytes: usize,
}

impl Filling {
    /// Whose filling it is.
    #[must_use]
    pub fn slot(&self) -> SlotIdx {
        self.slot
    }

    /// How many bytes may be written: the slot's, up to the next one.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes of `range`, to be written by whoever holds them. Pieces are taken from front to
    /// back, so that no two overlap.
    ///
    /// # Panics
    ///
    /// If the range begins before the end of the last one, or ends behind the slot; if more pieces
    /// are out than can be counted, as empty ones may be that were never dropped.
    pub fn take(&mut self, range: Range<usize>) -> Piece {
        assert!(range.start >= self.n_taken_bytes, "pieces are taken from front to back");
        assert!(range.start <= range.end && range.end <= self.len_bytes, "a piece of the slot");
        // A count that wrapped would say that no piece is out. Only this filling raises it, so
        // that it cannot rise between the look and the addition.
        let n_out = self.memory.n_pieces().load(Ordering::Relaxed);
        assert!(n_out < u32::MAX, "{:?}: its pieces can be counted", self.slot);
        self.n_taken_bytes = range.end;
        self.memory.n_pieces().fetch_add(1, Ordering::Relaxed);
        let mut memory = self.memory.clone();
        memory.start_bytes += range.start;
        Piece { memory, len_bytes: range.len(), kept_bytes: 0 }
    }

    /// Begins anew, from the front.
    ///
    /// # Panics
    ///
    /// If a piece is still out.
    pub fn restart(&mut self) {
        assert!(self.n_pieces() == 0, "{:?}: pieces of it are still out", self.slot);
        self.n_taken_bytes = 0;
    }

    /// What was written: for a check before the slot is declared ready.
    ///
    /// # Panics
    ///
    /// If a piece is still out.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        assert!(self.n_pieces() == 0, "{:?}: pieces of it are still out", self.slot);
        let first = self.memory.slab.byte(self.memory.start_bytes);
        // SAFETY: the range lies within the slab, which lives as long as `self`. Only pieces of
        // this filling could write it; none is out, and a new one needs `self` exclusively.
        unsafe { std::slice::from_raw_parts(first, self.len_bytes) }
    }

    fn n_pieces(&self) -> u32 {
        // Acquires what the holders of the pieces wrote.
        self.memory.n_pieces().load(Ordering::Acquire)
    }
}

/// A range of a slot, to be written by its holder alone. Its front part can be declared kept, so
/// that a read which came short goes on behind it.
#[derive(Debug)]
pub struct Piece {
    memory: SlotRange,
    len_bytes: usize,
    kept_bytes: usize,
}

impl Piece {
    /// Its size.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// How many bytes at its front are not to be written any more.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Declares `n_bytes` at the front to be kept, instead of those before.
    ///
    /// # Panics
    ///
    /// If it has not as many.
    pub fn keep(&mut self, n_bytes: usize) {
        assert!(n_bytes <= self.len_bytes, "a piece keeps its own bytes");
        self.kept_bytes = n_bytes;
    }

    /// What is to be written: all that is not kept.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        let len_bytes = self.rest_bytes();
        // SAFETY: the range lies within the slab, which lives as long as `self` and is initialised
        // throughout. Pieces of one filling never overlap, and one filling of a slot exists at a
        // time; so `&mut self` is the only way to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.rest_address(), len_bytes) }
    }

    /// How many bytes are to be written.
    #[must_use]
    pub fn rest_bytes(&self) -> usize {
        self.len_bytes - self.kept_bytes
    }

    /// Where the bytes to be written begin, for the system, which writes while no reference to
    /// them exists.
    pub(crate) fn rest_address(&self) -> *mut u8 {
        self.memory.slab.byte(self.memory.start_bytes + self.kept_bytes)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Releases what was written to who ends the filling.
        self.memory.n_pieces().fetch_sub(1, Ordering::Release);
    }
}
