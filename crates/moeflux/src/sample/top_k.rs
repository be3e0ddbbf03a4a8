//! Keeps exactly the k best candidates; among equal logits the lower ids.
//!
//! transformers keeps all that equal the k-th: an exact count bounds the work and has one reading.

use crate::sample::candidates::Candidates;

/// Cuts to the best `top_k`; 0 is off.
pub(super) fn keep(candidates: &mut Candidates<'_>, top_k: usize) {
    if top_k > 0 {
        candidates.keep_first(top_k);
    }
}
