//! The sampler's parameters and their ranges.
//!
//! **Invariant:** with a config that passed `validate`, no later step divides by zero, yields NaN,
//! or loops for long. This module is independent of vocabulary and model.

use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Maximum entries of `logit_bias`: each costs one addition per token.
pub(crate) const LOGIT_BIAS_MAX: usize = 65_536;
/// Maximum log-probabilities per token: all are copied into every answer.
pub const LOGPROBS_MAX: usize = 1_000;
/// Maximum magnitude of a penalty or bias. Logits are in the tens, so larger values would change
/// nothing. It is far below the square root of the largest f32, so a count times a penalty stays
/// finite.
pub const PENALTY_MAX: f32 = 1e6;

/// The parameters of sampling. Bias and penalties come first, then temperature, top-k, top-p and
/// min-p.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplerConfig {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keeps exactly the k best (ties: lower ids); 0 is off.
    pub top_k: usize,
    /// Keeps the best tokens until their probability reaches this; 1 is off.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the best token's probability; 0 is off.
    pub min_p: f32,
    /// Divides positive logits of seen tokens and multiplies negative ones; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it was seen; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each seen token; 0 is off.
    pub presence_penalty: f32,
    /// Number of last history tokens that count as seen; `None` is all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of these tokens; several entries of one token are summed.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Reports the log-probabilities of the chosen token and of this many best ones; `None` is off
    /// and saves a pass over the vocabulary.
    pub n_logprobs: Option<usize>,
}

impl SamplerConfig {
    /// Returns a config that always chooses the best token, with everything else off.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            seed: 0,
            n_logprobs: None,
        }
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// [`Error::Input`] that names the first value out of range.
    pub fn validate(&self) -> Result<()> {
        let checks = [
            ("temperature", self.temperature, 0.0, PENALTY_MAX),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 1.0 / PENALTY_MAX, PENALTY_MAX),
            ("frequency_penalty", self.frequency_penalty, -PENALTY_MAX, PENALTY_MAX),
            ("presence_penalty", self.presence_penalty, -PENALTY_MAX, PENALTY_MAX),
        ];
        for (name, value, low, high) in checks {
            in_range(name, value, low, high)?;
        }
        for (token, bias) in &self.logit_bias {
            in_range(
                &format!("logit_bias of token {}", token.0),
                *bias,
                -PENALTY_MAX,
                PENALTY_MAX,
            )?;
        }
        at_most("entries of logit_bias", self.logit_bias.len(), LOGIT_BIAS_MAX)?;
        at_most("n_logprobs", self.n_logprobs.unwrap_or(0), LOGPROBS_MAX)
    }
}

/// NaN is outside of every range.
fn in_range(name: &str, value: f32, low: f32, high: f32) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::Input(format!("{name} is {value}: give a number from {low} to {high}")))
}

fn at_most(name: &str, count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    Err(Error::Input(format!("{name}: {count} is too many; the limit is {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SamplerConfig)) -> String {
        let mut config = SamplerConfig::greedy();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn values_out_of_range_are_named_with_their_range() {
        assert_eq!(refused(|c| c.top_p = 1.5), "top_p is 1.5: give a number from 0 to 1");
        assert_eq!(refused(|c| c.min_p = -0.1), "min_p is -0.1: give a number from 0 to 1");
        assert!(refused(|c| c.temperature = f32::NAN).starts_with("temperature is NaN: give"));
        assert!(refused(|c| c.temperature = -1.0).starts_with("temperature is -1"));
        assert!(refused(|c| c.repetition_penalty = 0.0).starts_with("repetition_penalty is 0"));
        assert!(refused(|c| c.frequency_penalty = f32::INFINITY).contains("is inf"));
        assert!(refused(|c| c.presence_penalty = f32::NAN).contains("presence_penalty is NaN"));
        assert!(
            refused(|c| c.logit_bias = vec![(TokenId(7), f32::NEG_INFINITY)])
                .contains("logit_bias of token 7 is -inf")
        );
    }

    #[test]
    fn limits_are_reached_and_named() {
        let at_limit = SamplerConfig {
            n_logprobs: Some(LOGPROBS_MAX),
            logit_bias: vec![(TokenId(0), 0.0); LOGIT_BIAS_MAX],
            ..SamplerConfig::greedy()
        };
        assert!(at_limit.validate().is_ok());
        assert!(refused(|c| c.n_logprobs = Some(LOGPROBS_MAX + 1)).contains("the limit is 1000"));
        let biases = vec![(TokenId(0), 0.0); LOGIT_BIAS_MAX + 1];
        assert!(refused(|c| c.logit_bias = biases).contains("65537 is too many"));
    }
}
