//! The tokens that may still be chosen, sorted as far as they have been examined.
//!
//! **Invariant:** `entries[..n_sorted]` are the best, in descending logit and, among equals,
//! ascending id. Either they represent all tokens above minus infinity, or `entries` holds the
//! remaining ones, in the order of ids while nothing is sorted. A vocabulary has 250,000 tokens and
//! the best few hundred decide. Only those are copied and sorted, in one pass over the logits.
//! Otherwise sampling would cost more than a token of a small model.

use std::cmp::Ordering;

use crate::ids::TokenId;
use crate::sample::exp::{exp_negative, exp_negative_f32};

/// Entries sorted at the first access; each further sort covers four times as many.
const FIRST_LOOK: usize = 256;

/// Logits compared at a time with the lowest of the best ones.
const N_AT_ONCE: usize = 32;

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TokenCandidate {
    pub(super) logit: f32,
    pub(super) token: TokenId,
}

/// Returns the index of a token's logit.
pub(super) fn index(token: TokenId) -> usize {
    usize::try_from(token.0).expect("a token id fits a usize")
}

/// Memory reused for each token.
#[derive(Clone, Debug, Default)]
pub(super) struct CandidateScratch {
    entries: Vec<TokenCandidate>,
}

impl CandidateScratch {
    /// Allocates for a whole vocabulary, so that no later token allocates.
    pub(super) fn new(vocab: usize) -> Self {
        Self { entries: Vec::with_capacity(vocab) }
    }
}

/// The tokens left to choose from.
#[derive(Debug)]
pub(super) struct Candidates<'s> {
    /// Finite values or minus infinity.
    logits: &'s [f32],
    entries: &'s mut Vec<TokenCandidate>,
    n_sorted: usize,
    /// Whether nothing was removed; `entries` then holds only the sorted part.
    is_whole: bool,
    best_logit: f32,
    temperature: f32,
}

impl<'s> Candidates<'s> {
    /// Starts with every token whose logit is above minus infinity.
    pub(super) fn of(
        scratch: &'s mut CandidateScratch,
        logits: &'s [f32],
        temperature: f32,
    ) -> Self {
        scratch.entries.clear();
        Self {
            logits,
            entries: &mut scratch.entries,
            n_sorted: 0,
            is_whole: true,
            best_logit: highest(logits),
            temperature,
        }
    }

    /// Starts with the given best tokens only: best first, equal ones by ascending id.
    pub(super) fn of_best(
        scratch: &'s mut CandidateScratch,
        best: &[(TokenId, f32)],
        temperature: f32,
    ) -> Self {
        let entries = &mut scratch.entries;
        entries.clear();
        entries.extend(
            best.iter()
                .map(|&(token, logit)| TokenCandidate { logit, token })
                .take_while(|candidate| candidate.logit > f32::NEG_INFINITY),
        );
        let best_logit = entries.first().map_or(f32::NEG_INFINITY, |best| best.logit);
        let n_sorted = entries.len();
        Self { logits: &[], entries, n_sorted, is_whole: false, best_logit, temperature }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.best_logit == f32::NEG_INFINITY
    }

    /// Returns the highest logit of all.
    pub(super) fn best_logit(&self) -> f32 {
        self.best_logit
    }

    /// Returns the probability of an entry relative to the best one, at the set temperature.
    pub(super) fn weight(&self, candidate: TokenCandidate) -> f64 {
        weight_of(candidate.logit, self.best_logit, self.temperature)
    }

    /// Returns the sum of all weights. While nothing was removed, its relative error is about 1e-7.
    /// Otherwise entries are summed in their order: by id while nothing is sorted, else best first.
    /// The order is never half sorted, because the library's sort would then decide it.
    pub(super) fn total_weight(&self) -> f64 {
        if !self.is_whole {
            assert!(self.n_sorted == 0 || self.n_sorted == self.entries.len(), "half sorted");
            return self.entries.iter().map(|candidate| self.weight(*candidate)).sum();
        }
        if self.is_empty() {
            return 0.0;
        }
        // One lane per element of a chunk, whatever the vector width: the order of additions is
        // fixed.
        let (best, temperature) = (self.best_logit, self.temperature);
        let weight = |logit: &f32| exp_negative_f32((logit - best) / temperature);
        let (chunks, rest) = self.logits.as_chunks::<N_AT_ONCE>();
        let mut lanes = [0.0_f64; N_AT_ONCE];
        for chunk in chunks {
            let mut weights = [0.0_f32; N_AT_ONCE];
            for (weighed, logit) in weights.iter_mut().zip(chunk) {
                *weighed = weight(logit);
            }
            for (lane, weight) in lanes.iter_mut().zip(&weights) {
                *lane += f64::from(*weight);
            }
        }
        let rest = rest.iter().map(|logit| f64::from(weight(logit)));
        lanes.into_iter().chain(rest).sum()
    }

    /// Returns the entry at `rank`, counted from the best, and sorts as far as that needs; `None`
    /// after the last.
    pub(super) fn ranked(&mut self, rank: usize) -> Option<TokenCandidate> {
        if self.n_sorted <= rank {
            self.sort_first((self.n_sorted * 4).max(FIRST_LOOK).max(rank + 1));
        }
        self.entries[..self.n_sorted].get(rank).copied()
    }

    /// Keeps the best `n_kept`, sorted.
    pub(super) fn keep_first(&mut self, n_kept: usize) {
        self.sort_first(n_kept);
        self.entries.truncate(n_kept);
        self.n_sorted = self.entries.len();
        self.is_whole = false;
    }

    /// Keeps entries with at least this weight, in the same order.
    pub(super) fn keep_weights_from(&mut self, least: f64) {
        let (best, temperature) = (self.best_logit, self.temperature);
        let is_kept = |logit: f32| weight_of(logit, best, temperature) >= least;
        if self.is_whole {
            self.entries.clear();
            self.entries.extend(allowed(self.logits).filter(|it| is_kept(it.logit)));
            (self.n_sorted, self.is_whole) = (0, false);
            return;
        }
        let all_sorted = self.n_sorted == self.entries.len();
        assert!(all_sorted || self.n_sorted == 0, "no half-sorted cut");
        self.entries.retain(|candidate| is_kept(candidate.logit));
        self.n_sorted = if all_sorted { self.entries.len() } else { 0 };
    }

    fn sort_first(&mut self, n_wanted: usize) {
        if n_wanted <= self.n_sorted {
            return;
        }
        if self.is_whole {
            take_best(self.logits, n_wanted, self.entries);
            self.n_sorted = self.entries.len();
            return;
        }
        let n_wanted = n_wanted.min(self.entries.len());
        let rest = &mut self.entries[self.n_sorted..];
        let n_new = n_wanted - self.n_sorted;
        if n_new < rest.len() {
            rest.select_nth_unstable_by(n_new, best_first);
        }
        rest[..n_new].sort_unstable_by(best_first);
        self.n_sorted = n_wanted;
    }
}

/// Returns the probability of a logit relative to the best one.
fn weight_of(logit: f32, best: f32, temperature: f32) -> f64 {
    exp_negative((f64::from(logit) - f64::from(best)) / f64::from(temperature))
}

/// Returns the highest of the logits; minus infinity if there are none.
pub(super) fn highest(logits: &[f32]) -> f32 {
    let larger = |best: f32, logit: f32| if logit > best { logit } else { best };
    let mut lanes = [f32::NEG_INFINITY; N_AT_ONCE];
    let (chunks, rest) = logits.as_chunks::<N_AT_ONCE>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *logit);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, logit| larger(best, *logit))
}

fn allowed(logits: &[f32]) -> impl Iterator<Item = TokenCandidate> {
    let all =
        (0..).zip(logits).map(|(id, logit)| TokenCandidate { logit: *logit, token: TokenId(id) });
    all.filter(|candidate| candidate.logit > f32::NEG_INFINITY)
}

/// Collects the best `n_wanted`, sorted. Logits not above the lowest of the best so far are
/// skipped: among equals, a higher id ranks lower.
fn take_best(logits: &[f32], n_wanted: usize, best: &mut Vec<TokenCandidate>) {
    let n_wanted = n_wanted.min(logits.len());
    let n_max = (2 * n_wanted).max(4 * FIRST_LOOK);
    let mut least = f32::NEG_INFINITY;
    best.clear();
    for (chunk_idx, chunk) in logits.chunks(N_AT_ONCE).enumerate() {
        if !chunk.iter().fold(false, |is_any, logit| is_any | (*logit > least)) {
            continue;
        }
        for (id, logit) in (chunk_idx * N_AT_ONCE..).zip(chunk) {
            if *logit > least {
                let id = u32::try_from(id).expect("a vocabulary has fewer tokens");
                best.push(TokenCandidate { logit: *logit, token: TokenId(id) });
            }
        }
        if best.len() > n_max {
            best.select_nth_unstable_by(n_wanted - 1, best_first);
            best.truncate(n_wanted);
            least = best[n_wanted - 1].logit;
        }
    }
    best.sort_unstable_by(best_first);
    best.truncate(n_wanted);
}

/// A total order without ties, so that an unstable sort has only one result.
fn best_first(left: &TokenCandidate, right: &TokenCandidate) -> Ordering {
    // Not `total_cmp`: 0 and -0 are equal here, and there is no NaN.
    let by_logit = right.logit.partial_cmp(&left.logit).unwrap_or(Ordering::Equal);
    by_logit.then(left.token.cmp(&right.token))
}
