//! The size of a slot, and the number of slots in a number of bytes.
//!
//! **Invariant:** every expert of the model fits in a slot.

use moeflux_io::{FileIdx, SLOT_ALIGN, lay_out};

use crate::ids::ExpertIdx;
use crate::weights::{ExpertBank, FileExtent};

/// Bytes of a slab where slots are many: the granularity in which memory is freed.
const SLAB_BYTES: usize = 32 << 20;

/// Slot size for a model's experts, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShape {
    /// Bytes that the largest expert needs.
    pub slot_bytes: usize,
    /// Distance from one slot to the next.
    pub stride_bytes: usize,
    /// Experts of all layers.
    pub n_experts: usize,
}

impl SlotShape {
    /// Returns the number of slots that fit in `n_bytes`, at most the number of experts.
    #[must_use]
    pub fn n_slots(&self, n_bytes: u64) -> usize {
        let n_slots = n_bytes / self.stride_bytes.max(1) as u64;
        usize::try_from(n_slots).unwrap_or(usize::MAX).min(self.n_experts)
    }

    /// Returns the bytes of `n_slots` slots.
    #[must_use]
    pub fn bytes(&self, n_slots: usize) -> u64 {
        n_slots as u64 * self.stride_bytes as u64
    }
}

/// Returns the slot size for the experts of `banks`, read in blocks of `block_bytes`.
#[must_use]
pub fn slot_shape(banks: &[ExpertBank], block_bytes: usize) -> SlotShape {
    let run_of = |extent: FileExtent| {
        let len_bytes = usize::try_from(extent.len_bytes).expect("a part fits memory");
        (FileIdx(0), extent.offset_bytes, len_bytes)
    };
    let of_expert = |bank: &ExpertBank, expert: ExpertIdx| match &bank.records {
        Some(records) => records.record_bytes,
        None => {
            let extents = bank.parts.iter().map(|part| run_of(part.extent(expert)));
            lay_out(extents, block_bytes).slot_bytes()
        }
    };
    let sizes = banks
        .iter()
        .flat_map(|bank| (0..bank.n_experts).map(move |expert| of_expert(bank, ExpertIdx(expert))));
    let slot_bytes = sizes.max().unwrap_or(1);
    let n_experts = banks.iter().map(|bank| bank.n_experts).sum();
    SlotShape { slot_bytes, stride_bytes: slot_bytes.next_multiple_of(SLOT_ALIGN), n_experts }
}

/// Returns the slot size for the experts of `banks` once `moeflux pack` has written them.
#[must_use]
pub(crate) fn record_shape(banks: &[ExpertBank]) -> SlotShape {
    let slot_bytes = banks.iter().map(|bank| bank.layout.record_bytes()).max().unwrap_or(1);
    let n_experts = banks.iter().map(|bank| bank.n_experts).sum();
    SlotShape { slot_bytes, stride_bytes: slot_bytes.next_multiple_of(SLOT_ALIGN), n_experts }
}

/// Returns the slab size for `n_slots` slots, such that rounding does not enlarge a small pool
/// much.
pub(crate) fn slab_bytes(stride_bytes: usize, n_slots: usize) -> usize {
    (stride_bytes * n_slots / 8).clamp(stride_bytes, SLAB_BYTES.max(stride_bytes))
}
