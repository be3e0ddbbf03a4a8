//! Slots: ranges of equal size in a few large slabs of memory. Reads fill them; then many readers
//! share them.
//!
//! **Invariant:** a slot cannot be read while it is being filled, and a filling cannot begin while
//! the slot is being read: `begin_fill` borrows the memory exclusively, and only ready slots expose
//! their bytes. A slab lives as long as any [`Piece`] of it. Parts of it are written while others
//! are read, so there is never a reference to the whole, only its address and length. Handles only
//! bytes; the table of records in slots is kept elsewhere.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::aligned::{AlignedMemory, HUGE_PAGE_BYTES};

#[cfg(test)]
mod tests;

/// Alignment of slots within their slab: the largest page size of the machines in use (Apple
/// silicon), and a multiple of every block size.
pub const SLOT_ALIGN: usize = 16 << 10;

/// Index of a slot, from 0. Slots of a slab have consecutive indices, and keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIdx(pub usize);

/// Index of a slab, from 0. The index of a freed slab is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIdx(pub usize);

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It has no memory.
    Absent,
    /// Its contents are unspecified.
    Empty,
    /// Reads are writing to it.
    Filling,
    /// It holds the data that was read.
    Ready,
}

/// A range of memory that is allocated and freed as a whole. Clones are handles to the same memory
/// and keep it allocated.
#[derive(Clone)]
pub struct Slab(Arc<SlabMemory>);

struct SlabMemory {
    /// Parts of this are written while others are read.
    memory: AlignedMemory,
    /// Number of existing pieces of each slot.
    n_pieces: Box<[AtomicU32]>,
}

impl Slab {
    /// Returns its size.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.memory.len_bytes()
    }

    /// Returns the address of its first byte, for devices that read it in place. They may read only
    /// slots that are ready and are not filled meanwhile.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.0.memory.address()
    }

    /// Returns the address of one of its bytes, or of its end.
    pub(crate) fn byte(&self, offset_bytes: usize) -> *mut u8 {
        assert!(offset_bytes <= self.len_bytes(), "a byte of the slab");
        self.0.memory.address().as_ptr().wrapping_add(offset_bytes)
    }

    /// Returns whether both are handles to the same memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
impl Slab {
    /// Returns whether this is the only handle.
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
    /// Lower bound on the size of a slab.
    slab_bytes_min: usize,
    slabs: Vec<Option<Slab>>,
    /// State of every slot of every slab index, in order.
    states: Vec<SlotState>,
}

impl SlotMemory {
    /// Creates slots of `slot_bytes`, in slabs of at most `slab_bytes` but at least one slot. There
    /// is no slab at first.
    ///
    /// # Panics
    ///
    /// If `slot_bytes` is 0, or rounding it up to [`SLOT_ALIGN`] overflows.
    #[must_use]
    pub fn new(slot_bytes: usize, slab_bytes: usize) -> Self {
        assert!(slot_bytes > 0, "a slot has bytes");
        let stride_bytes = slot_bytes.checked_next_multiple_of(SLOT_ALIGN).expect("a slot fits");
        let n_slots_per_slab = (slab_bytes / stride_bytes).max(1);
        let slab_bytes_min = HUGE_PAGE_BYTES;
        let (slabs, states) = (Vec::new(), Vec::new());
        Self { slot_bytes, stride_bytes, n_slots_per_slab, slab_bytes_min, slabs, states }
    }

    /// Creates slots of `slot_bytes` without gaps, in slabs of exactly `n_slots_per_slab` slots.
    /// There is no slab at first. Slots are not aligned: for drives without blocks.
    ///
    /// # Panics
    ///
    /// If `slot_bytes` or `n_slots_per_slab` is 0.
    #[must_use]
    pub fn without_gaps(slot_bytes: usize, n_slots_per_slab: usize) -> Self {
        assert!(slot_bytes > 0 && n_slots_per_slab > 0, "slots have bytes, and slabs slots");
        let (slabs, states) = (Vec::new(), Vec::new());
        let (stride_bytes, slab_bytes_min) = (slot_bytes, 0);
        Self { slot_bytes, stride_bytes, n_slots_per_slab, slab_bytes_min, slabs, states }
    }

    /// Returns the size of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the memory of a slab once its pages have been accessed; at least one huge page,
    /// unless slots have no gaps.
    #[must_use]
    pub fn slab_bytes(&self) -> usize {
        (self.stride_bytes * self.n_slots_per_slab).max(self.slab_bytes_min)
    }

    /// Returns the number of slots per slab.
    #[must_use]
    pub fn n_slots_per_slab(&self) -> usize {
        self.n_slots_per_slab
    }

    /// Returns the number of slabs.
    #[must_use]
    pub fn n_slabs(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    /// Returns the number of slots that have memory.
    #[must_use]
    pub fn n_slots(&self) -> usize {
        self.n_slabs() * self.n_slots_per_slab
    }

    /// Returns the slots of a slab.
    #[must_use]
    pub fn slots_of(&self, slab_idx: SlabIdx) -> Range<usize> {
        let first = slab_idx.0 * self.n_slots_per_slab;
        first..first + self.n_slots_per_slab
    }

    /// Returns the slab of a slot.
    #[must_use]
    pub fn slab_of(&self, slot: SlotIdx) -> SlabIdx {
        SlabIdx(slot.0 / self.n_slots_per_slab)
    }

    /// Returns a handle to a slab, for drives that need it.
    #[must_use]
    pub fn slab(&self, slab_idx: SlabIdx) -> Option<&Slab> {
        self.slabs.get(slab_idx.0)?.as_ref()
    }

    /// Iterates over the allocated slabs, in order.
    pub fn slabs(&self) -> impl Iterator<Item = (SlabIdx, &Slab)> {
        let indexed = (0..).map(SlabIdx).zip(&self.slabs);
        indexed.filter_map(|(slab_idx, slab)| Some((slab_idx, slab.as_ref()?)))
    }

    /// Adds a slab with empty slots at the first free index. Returns `None` if the system has no
    /// memory for it.
    pub fn grow(&mut self) -> Option<SlabIdx> {
        let n_slots = self.n_slots_per_slab;
        let slab_bytes = self.stride_bytes.checked_mul(n_slots)?;
        let memory = AlignedMemory::zeroed(slab_bytes.max(self.slab_bytes_min))?;
        let n_pieces = (0..n_slots).map(|_| AtomicU32::new(0)).collect();
        let slab = Slab(Arc::new(SlabMemory { memory, n_pieces }));
        let slab_idx = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
        if slab_idx == self.slabs.len() {
            self.slabs.push(None);
            self.states.resize(self.slabs.len() * n_slots, SlotState::Absent);
        }
        self.slabs[slab_idx] = Some(slab);
        self.states[slab_idx * n_slots..(slab_idx + 1) * n_slots].fill(SlotState::Empty);
        Some(SlabIdx(slab_idx))
    }

    /// Frees a slab; the contents of its slots are lost.
    ///
    /// # Panics
    ///
    /// If there is no such slab, if one of its slots is being filled, or if another handle to it
    /// exists (of a drive that was not informed by `slab_removed`), which would keep its memory.
    pub fn shrink(&mut self, slab_idx: SlabIdx) {
        let slots = self.slots_of(slab_idx);
        let states = &mut self.states[slots];
        assert!(!states.contains(&SlotState::Filling), "no slot of the slab is being filled");
        states.fill(SlotState::Absent);
        let slab = self.slabs[slab_idx.0].take().expect("the slab is there");
        let memory = Arc::into_inner(slab.0);
        assert!(memory.is_some(), "no drive and no piece holds the slab");
    }

    /// Returns the state of a slot.
    #[must_use]
    pub fn state(&self, slot: SlotIdx) -> SlotState {
        self.states.get(slot.0).copied().unwrap_or(SlotState::Absent)
    }

    /// Returns the bytes of a slot.
    ///
    /// # Panics
    ///
    /// If the slot is not ready.
    #[must_use]
    pub fn bytes(&self, slot: SlotIdx) -> &[u8] {
        assert!(self.state(slot) == SlotState::Ready, "{slot:?} is {:?}", self.state(slot));
        let (slab, _, start) = self.find(slot);
        // SAFETY: the slot's range lies within its slab, whose bytes are all initialised, and the
        // slab lives as long as `self`. Nothing writes it: it is ready, so no piece of it exists,
        // and a filling can begin only when this borrow of `self` has ended.
        unsafe { std::slice::from_raw_parts(slab.byte(start), self.slot_bytes) }
    }

    /// Starts filling a slot; its contents are lost.
    ///
    /// # Panics
    ///
    /// If the slot has no memory or is already being filled.
    pub fn begin_fill(&mut self, slot: SlotIdx) -> Filling {
        let state = self.state(slot);
        assert!(matches!(state, SlotState::Empty | SlotState::Ready), "{slot:?} is {state:?}");
        self.states[slot.0] = SlotState::Filling;
        let (slab, slot_in_slab, start_bytes) = self.find(slot);
        let memory = SlotRange { slab: slab.clone(), slot_in_slab, start_bytes };
        Filling { memory, slot, len_bytes: self.stride_bytes, n_taken_bytes: 0 }
    }

    /// Ends a filling; the slot becomes ready.
    ///
    /// # Panics
    ///
    /// If a piece of it still exists, or the filling is not of this memory.
    #[expect(clippy::needless_pass_by_value, reason = "a filling ends once")]
    pub fn finish(&mut self, filling: Filling) {
        self.end(&filling, SlotState::Ready);
    }

    /// Ends a filling that failed; the slot becomes empty.
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

    /// Returns the slab of a slot that has memory, the slot's index within it, and its offset
    /// there.
    fn find(&self, slot: SlotIdx) -> (&Slab, usize, usize) {
        let slab = self.slab(self.slab_of(slot)).expect("the slot has memory");
        let slot_in_slab = slot.0 % self.n_slots_per_slab;
        (slab, slot_in_slab, slot_in_slab * self.stride_bytes)
    }
}

/// A slot's memory, without the right to access it.
#[derive(Clone, Debug)]
struct SlotRange {
    slab: Slab,
    slot_in_slab: usize,
    start_bytes: usize,
}

impl SlotRange {
    fn n_pieces(&self) -> &AtomicU32 {
        &self.slab.0.n_pieces[self.slot_in_slab]
    }
}

/// The right to write one slot. If it is dropped without [`SlotMemory::finish`] or
/// [`SlotMemory::abandon`], its slot stays unusable.
#[derive(Debug)]
#[must_use = "its slot stays closed until the filling is finished or abandoned"]
pub struct Filling {
    memory: SlotRange,
    slot: SlotIdx,
    len_bytes: usize,
    n_taken_bytes: usize,
}

impl Filling {
    /// Returns the slot that is being filled.
    #[must_use]
    pub fn slot(&self) -> SlotIdx {
        self.slot
    }

    /// Returns the number of writable bytes: those of the slot, up to the next one.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns `range` as a piece, which its holder may write. Pieces are taken from front to back,
    /// so that no two overlap.
    ///
    /// # Panics
    ///
    /// If the range begins before the end of the last one, or ends beyond the slot; if too many
    /// pieces exist for the counter, which is possible with empty ones that are leaked.
    pub fn take(&mut self, range: Range<usize>) -> Piece {
        assert!(range.start >= self.n_taken_bytes, "pieces are taken from front to back");
        assert!(range.start <= range.end && range.end <= self.len_bytes, "a piece of the slot");
        // A counter that wraps would report no pieces. Only this filling increments it, so it
        // cannot grow between the check and the addition.
        let n_out = self.memory.n_pieces().load(Ordering::Relaxed);
        assert!(n_out < u32::MAX, "{:?}: its pieces can be counted", self.slot);
        self.n_taken_bytes = range.end;
        self.memory.n_pieces().fetch_add(1, Ordering::Relaxed);
        let mut memory = self.memory.clone();
        memory.start_bytes += range.start;
        Piece { memory, len_bytes: range.len(), kept_bytes: 0 }
    }

    /// Restarts from the front.
    ///
    /// # Panics
    ///
    /// If a piece still exists.
    pub fn restart(&mut self) {
        assert!(self.n_pieces() == 0, "{:?}: pieces of it are still out", self.slot);
        self.n_taken_bytes = 0;
    }

    /// Returns the bytes written, to be checked before the slot becomes ready.
    ///
    /// # Panics
    ///
    /// If a piece still exists.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        assert!(self.n_pieces() == 0, "{:?}: pieces of it are still out", self.slot);
        let first = self.memory.slab.byte(self.memory.start_bytes);
        // SAFETY: the range lies within the slab, which lives as long as `self`. Only pieces of
        // this filling could write it; none exists, and a new one needs `self` exclusively.
        unsafe { std::slice::from_raw_parts(first, self.len_bytes) }
    }

    fn n_pieces(&self) -> u32 {
        // `Acquire`: makes the bytes visible that the holders of the pieces wrote.
        self.memory.n_pieces().load(Ordering::Acquire)
    }
}

/// A range of a slot that only its holder may write. Its front part can be marked as kept, so that
/// a short read continues after it.
#[derive(Debug)]
pub struct Piece {
    memory: SlotRange,
    len_bytes: usize,
    kept_bytes: usize,
}

impl Piece {
    /// Returns its size.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the number of bytes at its front that are kept.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Marks `n_bytes` at the front as kept; replaces the previous number.
    ///
    /// # Panics
    ///
    /// If it has fewer bytes.
    pub fn keep(&mut self, n_bytes: usize) {
        assert!(n_bytes <= self.len_bytes, "a piece keeps its own bytes");
        self.kept_bytes = n_bytes;
    }

    /// Returns the part to be written: everything that is not kept.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        let len_bytes = self.rest_bytes();
        // SAFETY: the range lies within the slab, which lives as long as `self` and is initialised
        // throughout. Pieces of one filling never overlap, and one filling of a slot exists at a
        // time; so `&mut self` is the only way to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.rest_address(), len_bytes) }
    }

    /// Returns the number of bytes to be written.
    #[must_use]
    pub fn rest_bytes(&self) -> usize {
        self.len_bytes - self.kept_bytes
    }

    /// Returns the start of the part to be written, for the system, which writes while no reference
    /// to it exists.
    pub(crate) fn rest_address(&self) -> *mut u8 {
        self.memory.slab.byte(self.memory.start_bytes + self.kept_bytes)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // `Release`: passes the written bytes to the thread that ends the filling.
        self.memory.n_pieces().fetch_sub(1, Ordering::Release);
    }
}
