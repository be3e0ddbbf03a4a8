//! How many slots a prompt may borrow for longer steps: an expert is read once per step.
//!
//! A prompt needs slots as a ring that experts pass through, and for those that stay from step to
//! step; what it borrows has to be read again afterwards. **Invariant:** pure; a longer step never
//! takes more bytes than the slots give up, which they do in whole slabs.

use crate::blueprint::Blueprint;
use crate::budget::{Layout, Placement, step_bytes};
use crate::experts::stream::{N_SLOTS_OF_PROMPT, slab_bytes};
use crate::ops::Workspace;

/// Upper bound on rows of a prompt's step: a step is not interrupted for other sessions, which
/// wait.
const N_ROWS_PROMPT_MAX: usize = 8192;

/// Cost of a lent slot in reads. The slot comes back empty, and the system clears its memory twice,
/// for the workspace and for the slot: together as long as this many reads (an EPYC's virtual
/// machine clears 0.6 to 1.3 GB/s where its drive reads 2.5; others clear faster, and have slower
/// drives).
const READS_PER_LENT_SLOT: usize = 4;

/// Memory to divide while a prompt runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRoom {
    /// Workspace of a step, by its rows.
    pub workspace: Workspace,
    /// Rows of a step while nothing is borrowed.
    pub n_rows: usize,
    /// Number of slots while nothing is borrowed.
    pub n_slots: usize,
    /// Distance from one slot to the next.
    pub slot_bytes: u64,
    /// Slots whose memory is allocated and freed together.
    pub n_slots_at_once: usize,
    /// Minimum number of slots that a prompt keeps.
    pub n_slots_least: usize,
    /// Experts of all layers.
    pub n_experts: usize,
}

/// The memory that a prompt borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Rows of a step.
    pub n_rows: usize,
    /// Slots whose memory is lent.
    pub n_slots_lent: usize,
}

impl PromptRoom {
    /// Returns the memory of a model with this layout whose experts are read past the page cache;
    /// `None` where all of them are in memory.
    #[must_use]
    pub fn planned(layout: &Layout, blueprint: &Blueprint) -> Option<Self> {
        let Placement::Streaming { n_slots } = layout.placement else { return None };
        let slot_bytes = usize::try_from(layout.slot_bytes).ok()?;
        Some(Self {
            workspace: blueprint.plan.workspace.clone(),
            n_rows: layout.n_rows_max,
            n_slots,
            slot_bytes: layout.slot_bytes,
            n_slots_at_once: slab_bytes(slot_bytes, n_slots) / slot_bytes.max(1),
            n_slots_least: N_SLOTS_OF_PROMPT.max(blueprint.spec.top_k_max()),
            n_experts: blueprint.manifest.banks.iter().map(|bank| bank.n_experts).sum(),
        })
    }

    /// Returns the division with the fewest reads for a prompt of `n_rows_prompt` rows, in steps as
    /// equal as possible, while `n_slots_gone` slots are lent to sessions; `None` where borrowing
    /// gains nothing.
    #[must_use]
    pub fn division(&self, n_rows_prompt: usize, n_slots_gone: usize) -> Option<Division> {
        let room = Self { n_slots: self.n_slots.checked_sub(n_slots_gone)?, ..self.clone() };
        room.division_of_all(n_rows_prompt)
    }

    fn division_of_all(&self, n_rows_prompt: usize) -> Option<Division> {
        let n_steps_usual = n_rows_prompt.div_ceil(self.n_rows);
        let n_reads_usual = n_steps_usual * self.n_absent(0);
        let divisions = (1..n_steps_usual).filter_map(|n_steps| {
            let n_rows = n_rows_prompt.div_ceil(n_steps);
            let n_slots_lent = self.n_slots_lent(n_rows)?;
            let n_reads =
                n_steps * self.n_absent(n_slots_lent) + READS_PER_LENT_SLOT * n_slots_lent;
            Some((n_reads, Division { n_rows, n_slots_lent }))
        });
        let best = divisions.min_by_key(|(n_reads, _)| *n_reads);
        best.filter(|(n_reads, _)| *n_reads < n_reads_usual).map(|(_, division)| division)
    }

    /// Returns the experts that each step has to read.
    fn n_absent(&self, n_slots_lent: usize) -> usize {
        self.n_experts.saturating_sub(self.n_slots - n_slots_lent)
    }

    /// Returns the slots to lend for steps of `n_rows` rows; `None` if too few would be left.
    fn n_slots_lent(&self, n_rows: usize) -> Option<usize> {
        let bytes = |n_rows| step_bytes(self.workspace.bytes(n_rows));
        let n_lent = (bytes(n_rows) - bytes(self.n_rows)).div_ceil(self.slot_bytes);
        let n_left = self.n_slots.checked_sub(usize::try_from(n_lent).ok()?)?;
        // Round down to a whole slab, so that the memory beyond it is freed.
        let n_left = n_left / self.n_slots_at_once * self.n_slots_at_once;
        let is_possible = n_rows <= N_ROWS_PROMPT_MAX && n_left >= self.n_slots_least;
        is_possible.then_some(self.n_slots - n_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row takes 1,000 bytes of workspace and 500 of scratch; steps of 100 rows; 60 slots for 200
    /// experts, 10,000 bytes each.
    fn room() -> PromptRoom {
        let mut workspace = Workspace::default();
        workspace.buffer("x", 250);
        PromptRoom {
            workspace,
            n_rows: 100,
            n_slots: 60,
            slot_bytes: 10_000,
            n_slots_at_once: 1,
            n_slots_least: 10,
            n_experts: 200,
        }
    }

    #[test]
    fn a_prompt_that_fits_a_step_borrows_nothing() {
        assert_eq!(room().division(0, 0), None);
        assert_eq!(room().division(1, 0), None);
        assert_eq!(room().division(100, 0), None);
    }

    #[test]
    fn one_step_where_that_fits() {
        // Two steps read 2 x 140. One takes 1,500 bytes more, so one slot: 141 + 4.
        assert_eq!(room().division(101, 0), Some(Division { n_rows: 101, n_slots_lent: 1 }));
        // Four steps read 560. One takes 300 x 1,500 bytes, so 45 slots: 185 + 180 = 365. Two take
        // 15: 2 x 155 + 60 = 370. Three of 134 rows take 6: 3 x 146 + 24 = 462.
        assert_eq!(room().division(400, 0), Some(Division { n_rows: 400, n_slots_lent: 45 }));
        // Five read 700. One would leave no slots; two of 250 rows take 23: 2 x 163 + 92 = 418.
        // Three of 167 take 11: 3 x 151 + 44 = 497.
        assert_eq!(room().division(500, 0), Some(Division { n_rows: 250, n_slots_lent: 23 }));
    }

    #[test]
    fn steps_are_as_equal_as_can_be() {
        assert_eq!(room().division(600, 0), Some(Division { n_rows: 300, n_slots_lent: 30 }));
        assert_eq!(room().division(601, 0), Some(Division { n_rows: 301, n_slots_lent: 31 }));
    }

    #[test]
    fn slots_go_in_pieces_and_the_least_stay() {
        // 15 slots for steps of 200 rows: 45 are left, but only 40 end a slab of 20.
        let room = PromptRoom { n_slots_at_once: 20, ..room() };
        assert_eq!(room.n_slots_lent(200), Some(20));
        assert_eq!(room.n_slots_lent(233), Some(20));
        assert_eq!(room.n_slots_lent(234), Some(40));
        let room = PromptRoom { n_slots_least: 21, ..room };
        assert_eq!(room.n_slots_lent(234), None);
        // Three steps of 200 rows read 3 x 160 + 80 = 560, six of 100 read 840.
        assert_eq!(room.division(600, 0), Some(Division { n_rows: 200, n_slots_lent: 20 }));
        assert_eq!(PromptRoom { n_slots_least: 60, ..room }.division(600, 0), None);
    }

    #[test]
    fn what_sessions_have_is_not_there() {
        // 2 x 143 + 1 more, of the 57 slots that remain.
        assert_eq!(room().division(101, 3), Some(Division { n_rows: 101, n_slots_lent: 1 }));
        assert_eq!(room().division(101, 50), None);
        assert_eq!(room().division(101, 61), None);
    }

    #[test]
    fn nothing_is_borrowed_where_nearly_all_are_in_memory() {
        // Four steps read 4 x 2; one would lend 45 and read 47.
        assert_eq!(PromptRoom { n_experts: 62, ..room() }.division(400, 0), None);
    }

    #[test]
    fn the_longer_step_takes_no_more_than_the_slots_give() {
        for n_slots_at_once in [1, 3, 7] {
            let room = PromptRoom { n_slots_at_once, ..room() };
            for n_rows_prompt in 1..2000 {
                let Some(Division { n_rows, n_slots_lent }) = room.division(n_rows_prompt, 0)
                else {
                    continue;
                };
                let taken = 1500 * (n_rows as u64 - 100);
                assert!(taken <= n_slots_lent as u64 * room.slot_bytes, "{n_rows_prompt} rows");
                assert!(room.n_slots - n_slots_lent >= room.n_slots_least);
                assert!((room.n_slots - n_slots_lent).is_multiple_of(n_slots_at_once));
            }
        }
    }
}
