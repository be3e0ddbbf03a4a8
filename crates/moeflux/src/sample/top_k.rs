//! Keeps exactly the k best candidates; among equal logits those with lower ids.
//!
//! transformers keeps all that equal the k-th. An exact count bounds the work and is unambiguous.

use crate::sample::candidates::Candidates;

/// Keeps the best `top_k`; 0 is off.
pub(super) fn keep(candidates: &mut Candidates<'_>, top_k: usize) {
    if top_k > 0 {
        candidates.keep_first(top_k);
    }
}
