//! Counts long prompts in a row that find almost nothing: their client may change what it sends
//! again, so that each turn of its conversation is read from the start.
//!
//! **Invariant:** pure. A row is reported once, and an owner's next one an hour later at the
//! earliest. Short prompts, and those whose loss has a known reason, neither count nor end a row.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::found::{MissRow, NearestText, PromptOutcome};
use crate::job::Owner;

/// Prompts with at most this many tokens do not count: reading them again costs little.
const N_TOKENS_SHORT_MAX: usize = 1_000;

/// A prompt found almost nothing if it found at most this part of its tokens.
const FOUND_PART: usize = 10;

/// Prompts in a row that are reported: fewer may be new conversations.
const N_PROMPTS_MIN: usize = 5;

/// Time between two reports of an owner: the reader of the log knows from then on.
const REPORT_PAUSE: Duration = Duration::from_secs(3_600);

/// Upper bound on the owners whose rows are counted. A further one displaces another.
const N_OWNERS_MAX: usize = 1_024;

/// The rows of all owners.
#[derive(Debug, Default)]
pub(crate) struct MissRows {
    owners: BTreeMap<Owner, OwnerRow>,
}

#[derive(Debug, Default)]
struct OwnerRow {
    row: MissRow,
    reported_at: Option<Duration>,
}

/// A prompt that begins.
pub(crate) struct LookedUpPrompt<'p> {
    pub(crate) owner: Owner,
    pub(crate) n_tokens: usize,
    pub(crate) n_cached: usize,
    pub(crate) outcome: PromptOutcome,
    pub(crate) nearest: Option<&'p NearestText>,
    /// Whether any conversation of its owner is in memory or on the drive.
    pub(crate) is_comparable: bool,
}

impl MissRows {
    /// Counts a prompt. Returns the row that is to be reported with it.
    pub(crate) fn count(
        &mut self,
        prompt: &LookedUpPrompt<'_>,
        now: Duration,
    ) -> Option<Box<MissRow>> {
        use PromptOutcome::{Drive, Dropped, Memory, Unusable};
        let has_reason = matches!(prompt.outcome, Dropped | Unusable);
        if prompt.n_tokens <= N_TOKENS_SHORT_MAX || has_reason || !prompt.is_comparable {
            return None;
        }
        let OwnerRow { row, reported_at } = self.owner_row(prompt.owner);
        let n_shared = prompt.nearest.map_or(0, |it| it.n_shared);
        let has_found = n_shared.max(prompt.n_cached) > prompt.n_tokens / FOUND_PART;
        if has_found || matches!(prompt.outcome, Memory | Drive) {
            *row = MissRow::default();
            return None;
        }
        row.n_prompts += 1;
        if let Some(nearest) = prompt.nearest.filter(|it| it.n_shared >= row.n_shared) {
            row.n_shared = nearest.n_shared;
            (row.kept, row.prompt) = (nearest.kept.clone(), nearest.prompt.clone());
        }
        let is_due = reported_at.is_none_or(|at| now.saturating_sub(at) >= REPORT_PAUSE);
        if row.n_prompts < N_PROMPTS_MIN || !is_due {
            return None;
        }
        *reported_at = Some(now);
        Some(Box::new(std::mem::take(row)))
    }

    fn owner_row(&mut self, owner: Owner) -> &mut OwnerRow {
        if self.owners.len() >= N_OWNERS_MAX && !self.owners.contains_key(&owner) {
            self.owners.pop_first();
        }
        self.owners.entry(owner).or_default()
    }
}

#[cfg(test)]
mod tests {
    use moeflux::TokenId;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A prompt of 20,000 tokens whose client changes its 213th token.
    fn prompt(nearest: &NearestText) -> LookedUpPrompt<'_> {
        LookedUpPrompt {
            owner: Owner(0),
            n_tokens: 20_000,
            n_cached: 212,
            outcome: PromptOutcome::Diverged,
            nearest: Some(nearest),
            is_comparable: true,
        }
    }

    fn nearest(n_shared: usize) -> NearestText {
        let shown = |first: usize| vec![TokenId(u32::try_from(first + n_shared).unwrap())];
        let (kept, prompt) = (shown(0), shown(1));
        NearestText { n_shared, n_tokens: 19_000, is_continued: false, kept, prompt }
    }

    #[test]
    fn five_long_prompts_that_find_nothing_are_reported_with_the_best_match() {
        let mut rows = MissRows::default();
        for n_shared in [20, 212, 30, 40] {
            assert_eq!(rows.count(&prompt(&nearest(n_shared)), SECOND), None);
        }
        let row = rows.count(&prompt(&nearest(50)), SECOND).unwrap();
        assert_eq!((row.n_prompts, row.n_shared), (5, 212));
        assert_eq!((&*row.kept, &*row.prompt), (&[TokenId(212)][..], &[TokenId(213)][..]));
    }

    #[test]
    fn the_next_report_is_an_hour_later() {
        let (mut rows, nearest) = (MissRows::default(), nearest(9));
        let reports: Vec<u64> = (0..10_000)
            .filter(|n| {
                rows.count(&prompt(&nearest), SECOND * u32::try_from(*n).unwrap()).is_some()
            })
            .collect();
        assert_eq!(reports, [4, 3_604, 7_204]);
    }

    #[test]
    fn a_prompt_that_finds_something_ends_the_row_of_its_owner() {
        let nearest = [nearest(9), nearest(2_001)];
        let miss = prompt(&nearest[0]);
        let ends = [
            (prompt(&nearest[1]), true),
            (LookedUpPrompt { n_cached: 2_001, ..prompt(&nearest[0]) }, true),
            (LookedUpPrompt { outcome: PromptOutcome::Memory, ..prompt(&nearest[0]) }, true),
            (LookedUpPrompt { n_tokens: 1_000, ..prompt(&nearest[1]) }, false),
            (LookedUpPrompt { outcome: PromptOutcome::Dropped, ..prompt(&nearest[0]) }, false),
            (LookedUpPrompt { outcome: PromptOutcome::Unusable, ..prompt(&nearest[0]) }, false),
            (LookedUpPrompt { is_comparable: false, nearest: None, ..prompt(&nearest[0]) }, false),
            (LookedUpPrompt { owner: Owner(1), ..prompt(&nearest[1]) }, false),
        ];
        for (idx, (other, ends_row)) in ends.iter().enumerate() {
            let mut rows = MissRows::default();
            for _ in 0..4 {
                assert_eq!(rows.count(&miss, SECOND), None);
            }
            assert_eq!(rows.count(other, SECOND), None, "case {idx}");
            assert_eq!(rows.count(&miss, SECOND).is_none(), *ends_row, "case {idx}");
        }
    }

    #[test]
    fn owners_are_bounded() {
        let (mut rows, nearest) = (MissRows::default(), nearest(9));
        for owner in 0..5_000 {
            rows.count(&LookedUpPrompt { owner: Owner(owner), ..prompt(&nearest) }, SECOND);
        }
        assert_eq!(rows.owners.len(), N_OWNERS_MAX);
    }
}
