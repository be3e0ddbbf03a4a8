//! Keeps candidates with at least a given fraction of the best one's probability.
//!
//! **Invariant:** the best candidate has weight 1 and always stays.

use crate::sample::candidates::Candidates;

/// Removes candidates less likely than `min_p` times the best; 0 is off.
pub(super) fn keep(candidates: &mut Candidates<'_>, min_p: f32) {
    if min_p > 0.0 {
        candidates.keep_weights_from(f64::from(min_p));
    }
}
