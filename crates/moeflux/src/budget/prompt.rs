//! How much of the slots a prompt may borrow for longer steps: an expert is read once per step.
//!
//! A prompt needs slots as a ring that experts pass through and for those that stay from step to
//! step; what it borrows has to be read again behind it. **Invariant:** pure; what the longer step
//! takes is at most what the slots give up, to the byte of what gives and takes memory.

use crate::budget::step_bytes;
use crate::ops::Workspace;

/// Longer steps wait for no fewer reads that matter, and others wait for a step to end.
const N_ROWS_PROMPT_MAX: usize = 8192;

/// What there is to divide while a prompt runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRoom {
    /// What rows of a step need.
    pub workspace: Workspace,
    /// Rows of a step where nothing is borrowed.
    pub n_rows: usize,
    /// Slots then.
    pub n_slots: usize,
    /// From one slot to the next.
    pub slot_bytes: u64,
    /// Memory of so many slots comes and goes together.
    pub n_slots_at_once: usize,
    /// A prompt keeps so many.
    pub n_slots_least: usize,
    /// Experts of all layers.
    pub n_experts: usize,
}

/// What a prompt borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Rows of a step.
    pub n_rows: usize,
    /// Slots that lend their memory.
    pub n_slots_lent: usize,
}

impl PromptRoom {
    /// The steps with the fewest reads for a prompt of so many rows, as equal as can be; `None`
    /// where borrowing gains nothing.
    #[must_use]
    pub fn division(&self, n_rows_prompt: usize) -> Option<Division> {
        let n_steps_usual = n_rows_prompt.div_ceil(self.n_rows);
        let n_reads_usual = n_steps_usual * self.n_absent(0);
        let divisions = (1..n_steps_usual).filter_map(|n_steps| {
            let n_rows = n_rows_prompt.div_ceil(n_steps);
            let n_slots_lent = self.n_slots_lent(n_rows)?;
            // What was lent is empty when it comes back.
            let n_reads = n_steps * self.n_absent(n_slots_lent) + n_slots_lent;
            Some((n_reads, Division { n_rows, n_slots_lent }))
        });
        let best = divisions.min_by_key(|(n_reads, _)| *n_reads);
        best.filter(|(n_reads, _)| *n_reads < n_reads_usual).map(|(_, division)| division)
    }

    /// Experts that are read once per step.
    fn n_absent(&self, n_slots_lent: usize) -> usize {
        self.n_experts.saturating_sub(self.n_slots - n_slots_lent)
    }

    /// Slots that have to go for steps of so many rows; `None` if too few would be left.
    fn n_slots_lent(&self, n_rows: usize) -> Option<usize> {
        let bytes = |n_rows| step_bytes(self.workspace.bytes(n_rows));
        let n_lent = (bytes(n_rows) - bytes(self.n_rows)).div_ceil(self.slot_bytes);
        let n_left = self.n_slots.checked_sub(usize::try_from(n_lent).ok()?)?;
        // Where their memory ends, so that all of the rest goes.
        let n_left = n_left / self.n_slots_at_once * self.n_slots_at_once;
        let is_possible = n_rows <= N_ROWS_PROMPT_MAX && n_left >= self.n_slots_least;
        is_possible.then_some(self.n_slots - n_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row takes 1,000 bytes of workspace and 500 of scratch; steps of 100 rows, 60 slots of 100
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
            n_experts: 100,
        }
    }

    #[test]
    fn a_prompt_that_fits_a_step_borrows_nothing() {
        assert_eq!(room().division(1), None);
        assert_eq!(room().division(100), None);
    }

    #[test]
    fn one_step_where_that_fits() {
        // Two steps read 2 x 40. One of 101 rows: 1,500 bytes more, one slot: 41 + 1.
        assert_eq!(room().division(101), Some(Division { n_rows: 101, n_slots_lent: 1 }));
        // Four steps read 160. One: 300 x 1,500 bytes, 45 slots, 85 + 45 = 130. Two of 200 rows:
        // 15 slots, 2 x 55 + 15 = 125. Three of 134: 6 slots, 3 x 46 + 6 = 144.
        assert_eq!(room().division(400), Some(Division { n_rows: 200, n_slots_lent: 15 }));
    }

    #[test]
    fn steps_are_as_equal_as_can_be() {
        // Four steps of 100 read 160, three of 111 lend 2: 3 x 42 + 2 = 128, two of 166 lend 10:
        // 2 x 50 + 10 = 110, one of 331 lends 35: 75 + 35 = 110, and is found first.
        assert_eq!(room().division(331), Some(Division { n_rows: 331, n_slots_lent: 35 }));
        // One more row takes one more slot for one step: 76 + 36 beside 2 x 50 + 10.
        assert_eq!(room().division(332), Some(Division { n_rows: 166, n_slots_lent: 10 }));
    }

    #[test]
    fn slots_go_in_pieces_and_the_least_stay() {
        // 15 slots for steps of 200 rows: 45 left, but only 40 end a piece of 20.
        let room = PromptRoom { n_slots_at_once: 20, ..room() };
        assert_eq!(room.n_slots_lent(200), Some(20));
        assert_eq!(room.n_slots_lent(233), Some(20));
        assert_eq!(room.n_slots_lent(234), Some(40));
        let room = PromptRoom { n_slots_least: 21, ..room };
        assert_eq!(room.n_slots_lent(234), None);
        // Of steps of 234 rows and more none is possible: three of 200 read 3 x 60 + 20 = 200, six
        // of 100 read 240.
        assert_eq!(room.division(600), Some(Division { n_rows: 200, n_slots_lent: 20 }));
        assert_eq!(PromptRoom { n_slots_least: 60, ..room }.division(600), None);
    }

    #[test]
    fn nothing_is_borrowed_where_nearly_all_are_in_memory() {
        // Four steps read 4 x 2; one lends 45 and reads 47 and 45.
        assert_eq!(PromptRoom { n_experts: 62, ..room() }.division(400), None);
    }

    #[test]
    fn the_longer_step_takes_no_more_than_the_slots_give() {
        for n_slots_at_once in [1, 3, 7] {
            let room = PromptRoom { n_slots_at_once, ..room() };
            for n_rows_prompt in 1..2000 {
                let Some(Division { n_rows, n_slots_lent }) = room.division(n_rows_prompt) else {
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
