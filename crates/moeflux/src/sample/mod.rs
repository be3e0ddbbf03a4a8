//! Turns the logits of one position into one token, always in this order:
//! 1. **log-probabilities** are taken from the model's own logits, before anything changes these.
//! 2. **bias**, then **penalties** (repetition, frequency, presence), in the order of transformers.
//! 3. **mask**. It is the last change to logits, so that nothing restores a forbidden token.
//! 4. **greedy**, if the temperature is 0, ends the chain: the highest logit; among equals the
//!    lowest id.
//! 5. **temperature**, **top-k**, **top-p**, **min-p**, as in transformers. The filters see the
//!    distribution that is drawn from. Top-p chooses among the k tokens of top-k. Min-p compares
//!    with the best token, which no filter removes.
//! 6. **draw** takes one number from the seeded generator, whatever the filters kept.
//!
//! **Invariant:** the token depends only on logits, history, mask, config and the number of earlier
//! draws. It is never a masked one. This module is independent of text.

mod config;
mod defaults;
mod exp;
mod candidates;
mod bias;
mod draw;
mod greedy;
mod logprobs;
mod min_p;
mod penalties;
mod random;
mod top_k;
mod top_p;

pub use crate::sample::config::{LOGPROBS_MAX, PENALTY_MAX, SamplerConfig};
pub use crate::sample::defaults::SamplerDefaults;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::sample::candidates::{CandidateScratch, Candidates};
use crate::sample::logprobs::LogProbabilities;
use crate::sample::penalties::Penalties;
use crate::sample::random::SplitMix64;

/// Forbids tokens before one is chosen, for instance by a grammar or a list of banned words.
pub trait LogitMask: Send {
    /// Sets the logits of forbidden tokens to minus infinity. There is one logit per vocabulary
    /// entry.
    fn apply(&mut self, logits: &mut [f32]);

    /// Receives the chosen token. Not called for tokens that end the answer.
    fn accept(&mut self, token: TokenId) {
        let _ = token;
    }

    /// Returns whether the answer may end here. If not, end tokens are forbidden too.
    fn may_end(&self) -> bool {
        true
    }

    /// Appends the tokens that must come next, in order, as long as each is the only one allowed;
    /// none if there is a choice. A caller that takes them must call [`LogitMask::accept`] for each
    /// in turn. For a caller that does not, [`LogitMask::apply`] allows each of them as the only
    /// token.
    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        let _ = forced;
    }

    /// Returns the reason why no token can be allowed any more, after an internal failure. The
    /// answer then ends with an error.
    fn failure(&self) -> Option<&str> {
        None
    }
}

impl<M: LogitMask + ?Sized> LogitMask for &mut M {
    fn apply(&mut self, logits: &mut [f32]) {
        (**self).apply(logits);
    }

    fn accept(&mut self, token: TokenId) {
        (**self).accept(token);
    }

    fn may_end(&self) -> bool {
        (**self).may_end()
    }

    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        (**self).forced(forced);
    }

    fn failure(&self) -> Option<&str> {
        (**self).failure()
    }
}

impl<M: LogitMask + ?Sized> LogitMask for Box<M> {
    fn apply(&mut self, logits: &mut [f32]) {
        (**self).apply(logits);
    }

    fn accept(&mut self, token: TokenId) {
        (**self).accept(token);
    }

    fn may_end(&self) -> bool {
        (**self).may_end()
    }

    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        (**self).forced(forced);
    }

    fn failure(&self) -> Option<&str> {
        (**self).failure()
    }
}

/// The chosen token. Borrows from its sampler, so that a token costs no allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice<'s> {
    /// The token.
    pub token: TokenId,
    /// Its natural log-probability under the model's own logits, if the config requests it.
    pub logprob: Option<f32>,
    /// The most likely tokens by the model's own logits, best first.
    pub top: &'s [(TokenId, f32)],
}

/// Scores given tokens by the model's own logits, as a [`Sampler`] scores the tokens it chooses.
#[derive(Clone, Debug, Default)]
pub struct Scorer {
    n_top: usize,
    logprobs: LogProbabilities,
}

impl Scorer {
    /// Creates a scorer that also returns the `n_top` most likely tokens for each score, at most
    /// [`LOGPROBS_MAX`].
    #[must_use]
    pub fn new(n_top: usize) -> Self {
        Self { n_top: n_top.min(LOGPROBS_MAX), logprobs: LogProbabilities::default() }
    }

    /// Returns the log-probability of `token` under these logits.
    ///
    /// # Errors
    /// If a logit is NaN or plus infinity, or the token is outside of the vocabulary.
    pub fn score(&mut self, logits: &[f32], token: TokenId) -> Result<Choice<'_>> {
        check_logits(logits)?;
        check_token(logits, token)?;
        let logprob = Some(self.logprobs.compute(logits, token, self.n_top));
        Ok(Choice { token, logprob, top: self.logprobs.top() })
    }
}

/// The sampling chain with its state: the generator, and scratch memory reused for each token.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    random: SplitMix64,
    logits: Vec<f32>,
    penalties: Penalties,
    scratch: CandidateScratch,
    logprobs: LogProbabilities,
}

impl Sampler {
    /// Creates a sampler for a model with `vocab` logits per position.
    ///
    /// # Errors
    /// If a value is out of range, or a bias applies to a token outside of the vocabulary.
    pub fn new(config: SamplerConfig, vocab: usize) -> Result<Self> {
        config.validate()?;
        bias::check(&config.logit_bias, vocab)?;
        Ok(Self {
            random: SplitMix64::new(config.seed),
            logits: vec![0.0; vocab],
            penalties: Penalties::new(vocab),
            scratch: CandidateScratch::new(vocab),
            logprobs: LogProbabilities::default(),
            config,
        })
    }

    /// Returns the config that this sampler was created from.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Chooses the token after `history`. Penalties apply to the tokens of `history` (to its last
    /// `penalty_window`): pass prompt and answer, or the answer alone.
    ///
    /// # Errors
    /// If a logit is NaN or plus infinity, if a history token is outside of the vocabulary, or if
    /// the mask leaves no token.
    pub fn sample(
        &mut self,
        logits: &[f32],
        history: &[TokenId],
        mask: Option<&mut dyn LogitMask>,
    ) -> Result<Choice<'_>> {
        assert_eq!(logits.len(), self.logits.len(), "one logit per vocabulary entry");
        check_logits(logits)?;
        self.logits.copy_from_slice(logits);
        bias::apply(&self.config.logit_bias, &mut self.logits);
        self.penalties.apply(&self.config, history, &mut self.logits)?;
        if let Some(mask) = mask {
            mask.apply(&mut self.logits);
            // A mask may write anything: NaN forbids, and infinity is a large number.
            for logit in &mut self.logits {
                *logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
            }
        }
        let token = if self.config.temperature == 0.0 {
            greedy::pick(&self.logits)
        } else {
            let temperature = self.config.temperature;
            let candidates = Candidates::of(&mut self.scratch, &self.logits, temperature);
            drawn(candidates, &self.config, &mut self.random)
        };
        let Some(token) = token else {
            return Err(nothing_left(logits));
        };
        let logprob =
            self.config.n_logprobs.map(|n_top| self.logprobs.compute(logits, token, n_top));
        Ok(Choice { token, logprob, top: self.logprobs.top() })
    }

    /// Returns how many of the largest logits determine a choice without a mask; `None` if all of
    /// them do.
    #[must_use]
    pub fn n_best_needed(&self) -> Option<usize> {
        let config = &self.config;
        let changes_logits = !config.logit_bias.is_empty() || !penalties::is_off(config);
        if changes_logits || config.n_logprobs.is_some() {
            return None;
        }
        if config.temperature == 0.0 { Some(1) } else { Some(config.top_k).filter(|k| *k > 0) }
    }

    /// Scores a token that is given instead of chosen. Draws no random number.
    ///
    /// # Errors
    /// If a logit is NaN or plus infinity, or the token is outside of the vocabulary.
    pub fn given(&mut self, logits: &[f32], token: TokenId) -> Result<Choice<'_>> {
        check_logits(logits)?;
        check_token(logits, token)?;
        let Some(n_top) = self.config.n_logprobs else {
            return Ok(Choice { token, logprob: None, top: &[] });
        };
        let logprob = Some(self.logprobs.compute(logits, token, n_top));
        Ok(Choice { token, logprob, top: self.logprobs.top() })
    }

    /// Chooses the token that [`Sampler::sample`] would choose without a mask, from the best logits
    /// alone: [`Sampler::n_best_needed`] of them, best first, equal ones by ascending id.
    ///
    /// # Errors
    /// If a logit is NaN or plus infinity, or all are minus infinity.
    ///
    /// # Panics
    /// If the choice depends on more logits.
    pub fn sample_best(&mut self, best: &[(TokenId, f32)]) -> Result<Choice<'_>> {
        let n_needed = self.n_best_needed().expect("the best are enough");
        assert!(best.len() == n_needed.min(self.logits.len()), "as many as are needed");
        if let Some((token, logit)) = best.iter().find(|(_, logit)| is_broken(*logit)) {
            return Err(broken(*token, *logit, self.logits.len()));
        }
        let token = if self.config.temperature == 0.0 {
            best.first().filter(|it| it.1 > f32::NEG_INFINITY).map(|it| it.0)
        } else {
            let temperature = self.config.temperature;
            let candidates = Candidates::of_best(&mut self.scratch, best, temperature);
            drawn(candidates, &self.config, &mut self.random)
        };
        let Some(token) = token else {
            return Err(nothing_left(&[]));
        };
        Ok(Choice { token, logprob: None, top: &[] })
    }
}

/// Filters the candidates and draws one of the rest.
fn drawn(
    mut candidates: Candidates<'_>,
    config: &SamplerConfig,
    random: &mut SplitMix64,
) -> Option<TokenId> {
    top_k::keep(&mut candidates, config.top_k);
    top_p::keep(&mut candidates, config.top_p);
    min_p::keep(&mut candidates, config.min_p);
    draw::pick(&mut candidates, random.next_f64())
}

fn check_token(logits: &[f32], token: TokenId) -> Result<()> {
    if (token.0 as usize) < logits.len() {
        return Ok(());
    }
    let n_logits = logits.len();
    Err(Error::Input(format!("token {} is not in the vocabulary of {n_logits}", token.0)))
}

/// Rejects broken logits. A single one means that the model's arithmetic failed; a token chosen in
/// spite of it would be noise that looks like an answer.
fn check_logits(logits: &[f32]) -> Result<()> {
    // A loop without an early exit is vectorised.
    if !logits.iter().fold(false, |is_any, logit| is_any | is_broken(*logit)) {
        return Ok(());
    }
    match (0..).zip(logits).find(|(_, logit)| is_broken(**logit)) {
        None => Ok(()),
        Some((id, logit)) => Err(broken(TokenId(id), *logit, logits.len())),
    }
}

fn is_broken(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
}

fn broken(token: TokenId, logit: f32, n_logits: usize) -> Error {
    Error::NonFinite { place: format!("token {} of {n_logits} logits ({logit})", token.0) }
}

fn nothing_left(logits: &[f32]) -> Error {
    let n_finite = logits.iter().filter(|logit| logit.is_finite()).count();
    Error::Input(format!(
        "no token is left to choose from: {n_finite} of {} logits are finite before the mask, \
         none after it; loosen the grammar or the list of banned tokens",
        logits.len()
    ))
}

#[cfg(test)]
mod tests;
