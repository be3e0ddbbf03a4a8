//! Keeps the nucleus: the smallest set of best candidates whose probability reaches p.
//!
//! **Invariant:** a candidate stays if those before it have a total below p (the rule of
//! transformers), so the best always stays.

use crate::sample::candidates::Candidates;

/// Reduces the candidates to the nucleus of `top_p`; 1 is off.
pub(super) fn keep(candidates: &mut Candidates<'_>, top_p: f32) {
    if top_p >= 1.0 || candidates.is_empty() {
        return;
    }
    let enough = f64::from(top_p) * candidates.total_weight();
    let mut before = 0.0;
    let mut n_kept = 0;
    while n_kept == 0 || before < enough {
        let Some(candidate) = candidates.ranked(n_kept) else { break };
        before += candidates.weight(candidate);
        n_kept += 1;
    }
    candidates.keep_first(n_kept);
}
