//! The tokens that may still be chosen, best first as far as anyone looked.
//!
//! **Invariant:** either nothing is sorted and ids ascend, or `entries[..n_sorted]` are the best,
//! in descending logit and, among equals, ascending id; no logit is minus infinity or not a number.
//! Sorting a vocabulary of 250,000 costs more than a small model's token; the best few hundred
//! decide, so only those are sorted.

use std::cmp::Ordering;

use crate::ids::TokenId;
use crate::sample::exp::exp_negative;

/// How many entries the first look sorts; each further look sorts four times as many.
const FIRST_LOOK: usize = 256;

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: TokenId,
}

/// The index of a token's logit.
pub(super) fn index(token: TokenId) -> usize {
    usize::try_from(token.0).expect("a token id fits a usize")
}

/// What is left to choose from.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    entries: Vec<Candidate>,
    n_sorted: usize,
    best_logit: f32,
    temperature: f64,
}

impl Candidates {
    /// Room for a whole vocabulary, so that no later call allocates.
    pub(super) fn new(vocab: usize) -> Self {
        Self {
            entries: Vec::with_capacity(vocab),
            n_sorted: 0,
            best_logit: f32::NEG_INFINITY,
            temperature: 1.0,
        }
    }

    /// Takes every token whose logit is above minus infinity. A mask may have written anything, so
    /// that not-a-number counts as forbidden and plus infinity as the largest number.
    pub(super) fn fill(&mut self, logits: &[f32], temperature: f32) {
        self.temperature = f64::from(temperature);
        self.n_sorted = 0;
        self.entries.clear();
        self.entries.extend(
            (0..)
                .zip(logits)
                .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
                .map(|(id, logit)| Candidate { logit: logit.min(f32::MAX), token: TokenId(id) }),
        );
        self.best_logit = self.entries.iter().fold(f32::NEG_INFINITY, |best, c| best.max(c.logit));
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The highest logit of all that were filled in.
    pub(super) fn best_logit(&self) -> f32 {
        self.best_logit
    }

    /// The probability of an entry as a share of the best one's, at the set temperature.
    pub(super) fn weight(&self, candidate: Candidate) -> f64 {
        exp_negative((f64::from(candidate.logit) - f64::from(self.best_logit)) / self.temperature)
    }

    /// The sum of all weights, in the order of the entries: ids while nothing is sorted, else
    /// best first. Never a half-sorted order, which the library's sort would decide.
    pub(super) fn total_weight(&self) -> f64 {
        assert!(self.n_sorted == 0 || self.n_sorted == self.len(), "no half-sorted sums");
        self.entries.iter().map(|candidate| self.weight(*candidate)).sum()
    }

    /// The entry at `rank` from the best, sorting as much as that needs.
    pub(super) fn ranked(&mut self, rank: usize) -> Candidate {
        while self.n_sorted <= rank {
            self.sort_first((self.n_sorted * 4).max(FIRST_LOOK).max(rank + 1));
        }
        self.entries[rank]
    }

    /// Keeps the best `n_kept`, sorted.
    pub(super) fn keep_first(&mut self, n_kept: usize) {
        self.sort_first(n_kept);
        self.entries.truncate(n_kept);
        self.n_sorted = self.entries.len();
    }

    /// Keeps entries with at least this weight. The order stays.
    pub(super) fn keep_weights_from(&mut self, least: f64) {
        let (best, temperature) = (f64::from(self.best_logit), self.temperature);
        let all_sorted = self.n_sorted == self.len();
        assert!(all_sorted || self.n_sorted == 0, "no half-sorted cut");
        self.entries.retain(|candidate| {
            exp_negative((f64::from(candidate.logit) - best) / temperature) >= least
        });
        self.n_sorted = if all_sorted { self.len() } else { 0 };
    }

    fn sort_first(&mut self, n_wanted: usize) {
        let n_wanted = n_wanted.min(self.len());
        if n_wanted <= self.n_sorted {
            return;
        }
        let rest = &mut self.entries[self.n_sorted..];
        let n_new = n_wanted - self.n_sorted;
        if n_new < rest.len() {
            rest.select_nth_unstable_by(n_new, best_first);
        }
        rest[..n_new].sort_unstable_by(best_first);
        self.n_sorted = n_wanted;
    }
}

/// A total order without equals, so that an unstable sort has one result.
fn best_first(left: &Candidate, right: &Candidate) -> Ordering {
    // Not `total_cmp`: 0 and -0 are equal here, and nothing is NaN.
    let by_logit = right.logit.partial_cmp(&left.logit).unwrap_or(Ordering::Equal);
    by_logit.then(left.token.cmp(&right.token))
}
