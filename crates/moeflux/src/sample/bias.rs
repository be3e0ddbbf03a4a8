//! Adds the caller's bias to individual logits.
//!
//! **Invariant:** no logit becomes plus infinity or NaN.

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::sample::candidates::index;

/// Refuses a bias on a token that has no logit.
pub(super) fn check(biases: &[(TokenId, f32)], vocab: usize) -> Result<()> {
    match biases.iter().find(|(token, _)| index(*token) >= vocab) {
        None => Ok(()),
        Some((token, _)) => Err(Error::Input(format!(
            "logit_bias names token {}, but the vocabulary has {vocab} tokens",
            token.0
        ))),
    }
}

/// Adds each bias to its logit.
pub(super) fn apply(biases: &[(TokenId, f32)], logits: &mut [f32]) {
    for (token, bias) in biases {
        let logit = &mut logits[index(*token)];
        *logit = (*logit + bias).min(f32::MAX);
    }
}
