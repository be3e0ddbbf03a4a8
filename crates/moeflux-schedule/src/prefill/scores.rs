//! Log-probabilities of a prompt's own tokens, from the logits before each.
//!
//! **Invariant:** equal to the numbers that a sampler reports for tokens that it chooses.

use std::sync::Arc;

use moeflux::sample::Scorer;
use moeflux::step::Logits;
use moeflux::{Result, TokenId};

use crate::job::Scored;

/// Scores the tokens of a prompt, in order, as its logits arrive.
pub(crate) struct PromptScorer {
    scorer: Scorer,
    prompt: Arc<[TokenId]>,
    list: Vec<Scored>,
}

impl PromptScorer {
    /// Lists `n_top` alternatives beside each token. The first token of a prompt has no score,
    /// because no logits precede it.
    pub(crate) fn new(prompt: Arc<[TokenId]>, n_top: usize, is_first: bool) -> Self {
        let first = Scored { token: prompt[0], logprob: None, top: Vec::new() };
        let list = if is_first { vec![first] } else { Vec::new() };
        Self { scorer: Scorer::new(n_top), prompt, list }
    }

    /// Takes the logits that follow the token at `position`.
    pub(crate) fn take(&mut self, position: usize, logits: Logits<'_>) -> Result<()> {
        let (Some(token), Logits::All(logits)) = (self.prompt.get(position + 1), logits) else {
            return Ok(());
        };
        let choice = self.scorer.score(logits, *token)?;
        let (logprob, top) = (choice.logprob, choice.top.to_vec());
        self.list.push(Scored { token: *token, logprob, top });
        Ok(())
    }

    pub(crate) fn into_list(self) -> Vec<Scored> {
        self.list
    }
}
