//! Turns the logits of one position into one token, in this order and no other:
//! 1. **log-probabilities** of the model's own logits: what it thinks, whatever is asked of it;
//! 2. **bias**, then **penalties** (repetition, frequency, presence): the order of transformers;
//! 3. **mask**: last of what changes logits, so that nothing brings back a forbidden token;
//! 4. **greedy**, if the temperature is 0, ends the chain: the best logit, of equals the lowest id;
//! 5. **temperature**, **top-k**, **top-p**, **min-p**, as in transformers: the cuts see the
//!    distribution that is drawn from, the nucleus is one of the k, and min-p compares with the
//!    best token, which no cut removes;
//! 6. **draw**: one number of the seeded generator, whatever the cuts left.
//!
//! **Invariant:** the token depends on logits, history, mask, config and the number of draws so
//! far, and on nothing else; it is never a masked one. Knows no text.

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
use crate::sample::candidates::{Candidates, Scratch};
use crate::sample::logprobs::LogProbabilities;
use crate::sample::penalties::Penalties;
use crate::sample::random::SplitMix64;

/// Forbids tokens before one is chosen: a grammar, a list of banned words.
pub trait LogitMask: Send {
    /// Sets the logits of forbidden tokens to minus infinity. One logit per vocabulary entry.
    fn apply(&mut self, logits: &mut [f32]);

    /// Hears which token was chosen; of tokens that end the answer it does not hear.
    fn accept(&mut self, token: TokenId) {
        let _ = token;
    }

    /// Whether the answer may end here. Where it may not, tokens that end it are forbidden as well.
    fn may_end(&self) -> bool {
        true
    }

    /// Appends the tokens that have to come next, in order, as far as nothing else is allowed; none
    /// where there is a choice. Whoever takes them lets this mask [`LogitMask::accept`] each in
    /// turn. Whoever does not finds that [`LogitMask::apply`] leaves each of them alone.
    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        let _ = forced;
    }

    /// Why no token can be allowed any more, if something went wrong inside: it ends the answer
    /// with an error.
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

/// What was chosen. Borrows from its sampler, so that a token costs no allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice<'s> {
    /// The token.
    pub token: TokenId,
    /// Its natural log-probability under the model's own logits, where the config asks for it.
    pub logprob: Option<f32>,
    /// The most likely tokens of the model's own logits, best first.
    pub top: &'s [(TokenId, f32)],
}

/// Scores given tokens by the model's own logits, as a [`Sampler`] scores those that it chooses.
#[derive(Clone, Debug, Default)]
pub struct Scorer {
    n_top: usize,
    logprobs: LogProbabilities,
}

impl Scorer {
    /// A scorer that names so many of the most likely tokens beside each, at most
    /// [`LOGPROBS_MAX`].
    #[must_use]
    pub fn new(n_top: usize) -> Self {
        Self { n_top: n_top.min(LOGPROBS_MAX), logprobs: LogProbabilities::default() }
    }

    /// How likely a token is behind these logits.
    ///
    /// # Errors
    /// A logit that is not a number or plus infinity, or a token outside of the vocabulary.
    pub fn score(&mut self, logits: &[f32], token: TokenId) -> Result<Choice<'_>> {
        check_logits(logits)?;
        check_token(logits, token)?;
        let logprob = Some(self.logprobs.take(logits, token, self.n_top));
        Ok(Choice { token, logprob, top: self.logprobs.top() })
    }
}

/// The chain with its memory: the generator's state and scratch that is reused for each token.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    random: SplitMix64,
    logits: Vec<f32>,
    penalties: Penalties,
    scratch: Scratch,
    logprobs: LogProbabilities,
}

impl Sampler {
    /// A sampler for a model with `vocab` logits per position.
    ///
    /// # Errors
    /// A value out of its range, or a bias on a token outside of the vocabulary.
    pub fn new(config: SamplerConfig, vocab: usize) -> Result<Self> {
        config.validate()?;
        bias::check(&config.logit_bias, vocab)?;
        Ok(Self {
            random: SplitMix64::new(config.seed),
            logits: vec![0.0; vocab],
            penalties: Penalties::new(vocab),
            scratch: Scratch::new(vocab),
            logprobs: LogProbabilities::default(),
            config,
        })
    }

    /// The config this sampler was made from.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Chooses the token after `history`. Penalties see what `history` holds (the last
    /// `penalty_window` of it): give it prompt and answer, or the answer alone.
    ///
    /// # Errors
    /// A logit that is not a number or plus infinity, a history token outside of the vocabulary,
    /// or no token left after the mask.
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
            // It may have written anything: not-a-number forbids, and infinity is a large number.
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
        let logprob = self.config.n_logprobs.map(|n_top| self.logprobs.take(logits, token, n_top));
        Ok(Choice { token, logprob, top: self.logprobs.top() })
    }

    /// On how many of the best logits a choice without a mask depends; `None`: on all of them.
    #[must_use]
    pub fn n_best_needed(&self) -> Option<usize> {
        let config = &self.config;
        let changes_logits = !config.logit_bias.is_empty() || !penalties::is_off(config);
        if changes_logits || config.n_logprobs.is_some() {
            return None;
        }
        if config.temperature == 0.0 { Some(1) } else { Some(config.top_k).filter(|k| *k > 0) }
    }

    /// A token that is given instead of chosen: it draws no random number.
    ///
    /// # Errors
    /// A logit that is not a number or plus infinity, or a token outside of the vocabulary.
    pub fn given(&mut self, logits: &[f32], token: TokenId) -> Result<Choice<'_>> {
        check_logits(logits)?;
        check_token(logits, token)?;
        let Some(n_top) = self.config.n_logprobs else {
            return Ok(Choice { token, logprob: None, top: &[] });
        };
        let logprob = Some(self.logprobs.take(logits, token, n_top));
        Ok(Choice { token, logprob, top: self.logprobs.top() })
    }

    /// Chooses the token that [`Sampler::sample`] would choose without a mask, from the best logits
    /// alone: [`Sampler::n_best_needed`] of them, best first, of equals the lower token.
    ///
    /// # Errors
    /// A logit that is not a number or plus infinity, or nothing but minus infinity.
    ///
    /// # Panics
    /// If the choice depends on more.
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

/// What the cuts leave of candidates, and one of those.
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

/// One broken logit means that the model's arithmetic broke: a token chosen around it would be
/// noise that looks like an answer.
fn check_logits(logits: &[f32]) -> Result<()> {
    // Without a way out of the loop it takes many at once.
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
