//! Chooses the highest logit; among equal ones the lowest id.

use crate::ids::TokenId;
use crate::sample::candidates::highest;

/// Returns the best token; `None` if every logit is minus infinity or NaN.
pub(super) fn pick(logits: &[f32]) -> Option<TokenId> {
    let best = highest(logits);
    let is_best = |logit: &f32| *logit > f32::NEG_INFINITY && *logit >= best;
    let id = logits.iter().position(is_best)?;
    Some(TokenId(u32::try_from(id).expect("a vocabulary has fewer tokens")))
}
