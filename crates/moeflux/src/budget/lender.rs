//! How much memory the slots of experts lend: to long prompts for longer steps, and to sessions
//! that outgrow the memory kept for them.
//!
//! A longer step saves reads, because each step reads an expert once. A prompt still needs slots as
//! a ring that experts pass through, and whatever it borrows has to be read again after it.
//!
//! **Invariant:** pure arithmetic. A borrower gets at most what the slots give up, to the byte.

use crate::blueprint::Blueprint;
use crate::budget::{MemoryLayout, Placement, step_bytes};
use crate::experts::policy::N_SLOTS_IN_TURN;
use crate::experts::stream::{N_SLOTS_OF_PROMPT, slab_bytes};
use crate::ops::Workspace;
use crate::spec::ModelSpec;

/// Upper bound on the rows of a prompt's step, during which other sessions wait.
const N_ROWS_PROMPT_MAX: usize = 8192;

/// The cost of lending a slot, in reads of an expert. The slot comes back empty, and the system
/// clears its memory twice: for the workspace and for the slot (an EPYC's virtual machine clears
/// 0.6 to 1.3 GB/s where its drive reads 2.5; others clear faster, and have slower drives).
const READS_PER_LENT_SLOT: usize = 4;

/// Slots that can lend their memory, and the terms on which borrowers get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLender {
    /// Slots while nothing is lent.
    pub n_slots: usize,
    /// Distance from one slot to the next.
    pub slot_bytes: u64,
    /// Slots whose memory is allocated and freed together.
    pub n_slots_at_once: usize,
    /// `None` if prompts cannot borrow.
    pub prompts: Option<PromptTerms>,
    /// `None` if sessions cannot borrow.
    pub sessions: Option<SessionTerms>,
}

/// Terms on which a prompt borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptTerms {
    /// The memory that the rows of a step need.
    pub workspace: Workspace,
    /// Bytes for the rows of tables of one row of a step.
    pub table_bytes_per_row: u64,
    /// Rows of a step while nothing is borrowed.
    pub n_rows: usize,
    /// Slots that a prompt needs itself.
    pub n_slots_min: usize,
    /// Experts of all layers.
    pub n_experts: usize,
}

/// Terms on which sessions borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTerms {
    /// The memory of sessions while nothing is borrowed.
    pub session_bytes: u64,
    /// Slots that are never lent to sessions.
    pub n_slots_min: usize,
}

/// The steps of a prompt and the slots lent for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptSteps {
    /// Rows of a step.
    pub n_rows: usize,
    /// Slots lent.
    pub n_slots_lent: usize,
}

/// The memory that the sessions of an engine share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionRoom {
    /// Bytes in use.
    pub booked_bytes: u64,
    /// Upper bound on the bytes, with everything that experts can lend; `None` if there is no
    /// limit.
    pub limit_bytes: Option<u64>,
    /// Slots of experts borrowed now.
    pub n_slots_lent: usize,
}

impl SlotLender {
    /// Returns the lender of a model with this layout whose experts are read past the page cache,
    /// for prompts only; `None` if all experts are in memory.
    #[must_use]
    pub fn planned(layout: &MemoryLayout, blueprint: &Blueprint) -> Option<Self> {
        let Placement::Streaming { n_slots } = layout.placement else { return None };
        let slot_bytes = usize::try_from(layout.slot_bytes).ok()?;
        Some(Self {
            n_slots,
            slot_bytes: layout.slot_bytes,
            n_slots_at_once: slab_bytes(slot_bytes, n_slots) / slot_bytes.max(1),
            prompts: Some(PromptTerms {
                workspace: blueprint.plan.workspace.clone(),
                table_bytes_per_row: blueprint.plan.table_bytes_per_row(),
                n_rows: layout.n_rows_max,
                n_slots_min: n_slots_of_prompt(&blueprint.spec),
                n_experts: blueprint.manifest.banks.iter().map(|bank| bank.n_experts).sum(),
            }),
            sessions: None,
        })
    }

    /// Returns the steps with the fewest reads for a prompt of `n_rows_prompt` rows, of nearly
    /// equal length, while `n_slots_for_sessions` slots are lent to sessions; `None` if borrowing
    /// gains nothing.
    #[must_use]
    pub fn prompt_steps(
        &self,
        n_rows_prompt: usize,
        n_slots_for_sessions: usize,
    ) -> Option<PromptSteps> {
        let terms = self.prompts.as_ref()?;
        let n_slots = self.n_slots.checked_sub(n_slots_for_sessions)?;
        // Experts that every step reads.
        let n_absent = |n_slots_lent| terms.n_experts.saturating_sub(n_slots - n_slots_lent);
        let n_steps_usual = n_rows_prompt.div_ceil(terms.n_rows);
        let n_reads_usual = n_steps_usual * n_absent(0);
        let candidates = (1..n_steps_usual).filter_map(|n_steps| {
            let n_rows = n_rows_prompt.div_ceil(n_steps);
            let n_slots_lent = self.n_slots_for_rows(terms, n_slots, n_rows)?;
            let n_reads = n_steps * n_absent(n_slots_lent) + READS_PER_LENT_SLOT * n_slots_lent;
            Some((n_reads, PromptSteps { n_rows, n_slots_lent }))
        });
        let best = candidates.min_by_key(|(n_reads, _)| *n_reads);
        best.filter(|(n_reads, _)| *n_reads < n_reads_usual).map(|(_, prompt_steps)| prompt_steps)
    }

    /// Returns the slots of `n_slots` to lend for steps of `n_rows` rows.
    fn n_slots_for_rows(
        &self,
        terms: &PromptTerms,
        n_slots: usize,
        n_rows: usize,
    ) -> Option<usize> {
        let bytes = |n_rows| {
            step_bytes(terms.workspace.bytes(n_rows)) + terms.table_bytes_per_row * n_rows as u64
        };
        let n_bytes = bytes(n_rows) - bytes(terms.n_rows);
        let n_slots_lent = self.n_slots_for_bytes(n_bytes, n_slots, terms.n_slots_min);
        n_slots_lent.filter(|_| n_rows <= N_ROWS_PROMPT_MAX)
    }

    /// Returns the slots to lend so that sessions have `session_bytes` in all; `None` if too few
    /// would be left.
    #[must_use]
    pub fn n_slots_for_sessions(&self, session_bytes: u64) -> Option<usize> {
        let terms = self.sessions?;
        match session_bytes.saturating_sub(terms.session_bytes) {
            0 => Some(0),
            n_bytes => self.n_slots_for_bytes(n_bytes, self.n_slots, terms.n_slots_min),
        }
    }

    /// Returns the memory of sessions while this many slots are lent to them; `None` if they cannot
    /// borrow.
    #[must_use]
    pub fn session_bytes(&self, n_slots_lent: usize) -> Option<u64> {
        Some(self.sessions?.session_bytes + n_slots_lent as u64 * self.slot_bytes)
    }

    /// Returns the memory of sessions while all that can be lent to them is; `None` if they cannot
    /// borrow.
    #[must_use]
    pub fn session_bytes_max(&self) -> Option<u64> {
        self.session_bytes(self.n_slots.saturating_sub(self.sessions?.n_slots_min))
    }

    /// Returns the slots of `n_slots` to lend so that a borrower has `n_bytes`; `None` if fewer
    /// than `n_slots_min` would be left. Whole slabs stay, so that the memory of all other slots is
    /// freed.
    fn n_slots_for_bytes(&self, n_bytes: u64, n_slots: usize, n_slots_min: usize) -> Option<usize> {
        let n_slots_lent = usize::try_from(n_bytes.div_ceil(self.slot_bytes)).ok()?;
        let n_left = n_slots.checked_sub(n_slots_lent)?;
        let n_left = n_left / self.n_slots_at_once * self.n_slots_at_once;
        (n_left >= n_slots_min).then_some(n_slots - n_left)
    }
}

/// Returns the slots that a prompt leaves for experts: with fewer, it waits for reads more than
/// longer steps would gain.
pub(crate) fn n_slots_of_prompt(spec: &ModelSpec) -> usize {
    let n_slots = if spec.streams_layers() { N_SLOTS_IN_TURN } else { N_SLOTS_OF_PROMPT };
    n_slots.max(spec.top_k_max())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row takes 1,000 bytes of workspace and 500 of scratch; steps of 100 rows, 60 slots of 200
    /// experts, 10,000 bytes each.
    fn terms() -> PromptTerms {
        let mut workspace = Workspace::default();
        workspace.buffer("x", 250);
        PromptTerms {
            workspace,
            table_bytes_per_row: 0,
            n_rows: 100,
            n_slots_min: 10,
            n_experts: 200,
        }
    }

    fn lender(n_slots_at_once: usize, terms: PromptTerms) -> SlotLender {
        let prompts = Some(terms);
        SlotLender { n_slots: 60, slot_bytes: 10_000, n_slots_at_once, prompts, sessions: None }
    }

    fn prompt_steps(n_rows_prompt: usize, n_slots_for_sessions: usize) -> Option<PromptSteps> {
        lender(1, terms()).prompt_steps(n_rows_prompt, n_slots_for_sessions)
    }

    #[test]
    fn a_prompt_that_fits_a_step_borrows_nothing() {
        assert_eq!(prompt_steps(0, 0), None);
        assert_eq!(prompt_steps(1, 0), None);
        assert_eq!(prompt_steps(100, 0), None);
    }

    #[test]
    fn one_step_where_that_fits() {
        // Two steps read 2 x 140. One takes 1,500 bytes more, of one slot: 141 + 4.
        assert_eq!(prompt_steps(101, 0), Some(PromptSteps { n_rows: 101, n_slots_lent: 1 }));
        // Four steps read 560. One takes 300 x 1,500 bytes, 45 slots: 185 + 180 = 365. Two take
        // 15: 2 x 155 + 60 = 370. Three of 134 rows take 6: 3 x 146 + 24 = 462.
        assert_eq!(prompt_steps(400, 0), Some(PromptSteps { n_rows: 400, n_slots_lent: 45 }));
        // Five read 700. One would leave no slots, two of 250 rows take 23: 2 x 163 + 92 = 418.
        // Three of 167 take 11: 3 x 151 + 44 = 497.
        assert_eq!(prompt_steps(500, 0), Some(PromptSteps { n_rows: 250, n_slots_lent: 23 }));
    }

    #[test]
    fn steps_are_as_equal_as_can_be() {
        assert_eq!(prompt_steps(600, 0), Some(PromptSteps { n_rows: 300, n_slots_lent: 30 }));
        assert_eq!(prompt_steps(601, 0), Some(PromptSteps { n_rows: 301, n_slots_lent: 31 }));
    }

    #[test]
    fn a_prompt_leaves_whole_slabs_and_its_own_slots() {
        // 15 slots for steps of 200 rows: 45 left, but only 40 end a piece of 20.
        let n_slots_for = |n_slots_min, n_rows| {
            let terms = PromptTerms { n_slots_min, ..terms() };
            lender(20, terms.clone()).n_slots_for_rows(&terms, 60, n_rows)
        };
        assert_eq!(n_slots_for(10, 200), Some(20));
        assert_eq!(n_slots_for(10, 233), Some(20));
        assert_eq!(n_slots_for(10, 234), Some(40));
        assert_eq!(n_slots_for(21, 234), None);
        // Three steps of 200 rows read 3 x 160 + 80 = 560, six of 100 read 840.
        let prompt_steps =
            |n_slots_min| lender(20, PromptTerms { n_slots_min, ..terms() }).prompt_steps(600, 0);
        assert_eq!(prompt_steps(21), Some(PromptSteps { n_rows: 200, n_slots_lent: 20 }));
        assert_eq!(prompt_steps(60), None);
    }

    #[test]
    fn slots_of_sessions_are_not_available() {
        // 2 x 143 + 1 more, of the 57 slots that are left.
        assert_eq!(prompt_steps(101, 3), Some(PromptSteps { n_rows: 101, n_slots_lent: 1 }));
        assert_eq!(prompt_steps(101, 50), None);
        assert_eq!(prompt_steps(101, 61), None);
    }

    #[test]
    fn nothing_is_borrowed_where_nearly_all_are_in_memory() {
        // Four steps read 4 x 2; one would lend 45 and read 47.
        assert_eq!(lender(1, PromptTerms { n_experts: 62, ..terms() }).prompt_steps(400, 0), None);
    }

    #[test]
    fn the_longer_step_takes_no_more_than_the_slots_give() {
        for n_slots_at_once in [1, 3, 7] {
            let lender = lender(n_slots_at_once, terms());
            for n_rows_prompt in 1..2000 {
                let Some(PromptSteps { n_rows, n_slots_lent }) =
                    lender.prompt_steps(n_rows_prompt, 0)
                else {
                    continue;
                };
                let taken = 1500 * (n_rows as u64 - 100);
                assert!(taken <= n_slots_lent as u64 * lender.slot_bytes, "{n_rows_prompt} rows");
                assert!(60 - n_slots_lent >= 10);
                assert!((60 - n_slots_lent).is_multiple_of(n_slots_at_once));
            }
        }
    }

    #[test]
    fn sessions_leave_whole_slabs_and_the_least_slots() {
        let sessions = Some(SessionTerms { session_bytes: 1000, n_slots_min: 10 });
        let lender = SlotLender {
            n_slots: 60,
            slot_bytes: 100,
            n_slots_at_once: 8,
            prompts: None,
            sessions,
        };
        for (session_bytes, expected) in [
            (0, Some(0)),
            (1000, Some(0)),
            // 59 are left, but only 56 end a slab.
            (1001, Some(4)),
            (1400, Some(4)),
            (1401, Some(12)),
            // 16 of the 60 stay; 8 would be fewer than the least.
            (5400, Some(44)),
            (5401, None),
            (u64::MAX, None),
        ] {
            assert_eq!(lender.n_slots_for_sessions(session_bytes), expected, "{session_bytes}");
            let lent = expected.and_then(|n_slots| lender.session_bytes(n_slots));
            assert!(lent.is_none_or(|lent| lent >= session_bytes), "{session_bytes}");
        }
    }
}
