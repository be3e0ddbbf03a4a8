//! The highest logit; among equal ones the lowest id.

use crate::ids::TokenId;
use crate::sample::candidates::highest;

/// The best token, or none if every logit is minus infinity or not a number.
pub(super) fn pick(logits: &[f32]) -> Option<TokenId> {
    let best = highest(logits);
    let is_best = |logit: &f32| *logit > f32::NEG_INFINITY && *logit >= best;
    let id = logits.iter().position(is_best)?;
    Some(TokenId(u32::try_from(id).expect("a vocabulary has fewer tokens")))
}
