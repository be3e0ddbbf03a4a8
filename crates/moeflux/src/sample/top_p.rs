//! Keeps the nucleus: the fewest best candidates whose probability reaches p.
//!
//! **Invariant:** a candidate stays if those before it have less than p together (the rule of
//! transformers), so that the best always stays.

use crate::sample::candidates::Candidates;

/// Cuts to the nucleus of `top_p`; 1 is off.
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
