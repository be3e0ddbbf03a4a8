//! The highest logit; among equal ones the lowest id.

use crate::ids::TokenId;

/// The best token, or none if every logit is minus infinity or not a number.
pub(super) fn pick(logits: &[f32]) -> Option<TokenId> {
    let mut best = f32::NEG_INFINITY;
    let mut token = None;
    for (id, logit) in (0..).zip(logits) {
        if *logit > best {
            best = *logit;
            token = Some(TokenId(id));
        }
    }
    token
}
