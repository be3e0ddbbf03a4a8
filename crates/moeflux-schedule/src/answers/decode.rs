//! An answer without its session: how its tokens are chosen, and the tokens that were reported but
//! not yet fed.

use std::time::Duration;

use moeflux::{Generation, TokenId};

use crate::tracked::JobId;

/// The decoding state of one answer: its generation, and its tokens that are still to be fed.
pub(crate) struct DecodeState<'e> {
    pub(crate) job: JobId,
    pub(crate) answer_idx: usize,
    pub(crate) generation: Generation<'e>,
    /// Chosen and reported, not yet fed: the newest, preceded by tokens that a mask forced.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) n_tokens: usize,
    pub(crate) token_at: Duration,
}
