//! An answer apart from its session: how its tokens are chosen, and those that were told and not
//! fed yet.

use std::time::Duration;

use moeflux::{Generation, TokenId};

use crate::tracked::JobId;

/// The tokens that come next in an answer, and where they come from.
pub(crate) struct Line<'e> {
    pub(crate) job: JobId,
    pub(crate) answer_idx: usize,
    pub(crate) generation: Generation<'e>,
    /// Chosen and told, not fed yet: the newest, and before it what a mask forced.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) n_tokens: usize,
    pub(crate) token_at: Duration,
}
