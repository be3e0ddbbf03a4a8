//! Computes natural log-probabilities from the model's own logits.
//!
//! **Invariant:** `top` is sorted best first, equal ones by ascending id. Sums are f64 in the order
//! of ids. This module is independent of bias, penalties and filters, which express the caller's
//! preferences.

use crate::ids::TokenId;
use crate::sample::candidates::{CandidateScratch, Candidates, index};

/// Scratch and result of one token.
#[derive(Clone, Debug, Default)]
pub(super) struct LogProbabilities {
    scratch: CandidateScratch,
    top: Vec<(TokenId, f32)>,
}

impl LogProbabilities {
    /// Returns the best tokens of the last [`Self::compute`], with their log-probabilities.
    pub(super) fn top(&self) -> &[(TokenId, f32)] {
        &self.top
    }

    /// Stores the `n_top` best tokens and returns the log-probability of `token`.
    pub(super) fn compute(&mut self, logits: &[f32], token: TokenId, n_top: usize) -> f32 {
        let mut ranked = Candidates::of(&mut self.scratch, logits, 1.0);
        let best = f64::from(ranked.best_logit());
        let log_total = libm::log(ranked.total_weight());
        #[expect(clippy::cast_possible_truncation, reason = "f64 to f32 rounds")]
        let logprob = |logit: f32| (f64::from(logit) - best - log_total) as f32;
        self.top.clear();
        for rank in 0..n_top {
            let Some(candidate) = ranked.ranked(rank) else { break };
            self.top.push((candidate.token, logprob(candidate.logit)));
        }
        logprob(logits[index(token)])
    }
}
