//! Lowers the logits of seen tokens: repetition, frequency, presence, in this order.
//!
//! **Invariant:** between two calls every count is 0, so that a call costs time proportional to the
//! window and not to the vocabulary. Minus infinity stays minus infinity; nothing becomes plus
//! infinity or NaN.

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::sample::candidates::index;
use crate::sample::config::SamplerConfig;

/// Counts of seen tokens; the memory is reused for each call.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    counts: Vec<u32>,
}

impl Penalties {
    pub(super) fn new(vocab: usize) -> Self {
        Self { counts: vec![0; vocab] }
    }

    /// Applies all three penalties.
    pub(super) fn apply(
        &mut self,
        config: &SamplerConfig,
        history: &[TokenId],
        logits: &mut [f32],
    ) -> Result<()> {
        if is_off(config) {
            return Ok(());
        }
        let n_window = config.penalty_window.unwrap_or(history.len()).min(history.len());
        let window = &history[history.len() - n_window..];
        if let Some(token) = window.iter().find(|token| index(**token) >= self.counts.len()) {
            return Err(Error::Input(format!(
                "the history holds token {}, but the vocabulary has {} tokens",
                token.0,
                self.counts.len()
            )));
        }
        for token in window {
            let count = &mut self.counts[index(*token)];
            *count = count.saturating_add(1);
        }
        for token in window {
            // Taking the count makes later occurrences of the token in the window do nothing.
            let count = std::mem::take(&mut self.counts[index(*token)]);
            if count > 0 {
                let logit = &mut logits[index(*token)];
                *logit = penalised(*logit, count, config);
            }
        }
        Ok(())
    }
}

/// Returns whether no penalty has any effect.
pub(super) fn is_off(config: &SamplerConfig) -> bool {
    let unit = 1.0..=1.0;
    unit.contains(&config.repetition_penalty)
        && config.frequency_penalty == 0.0
        && config.presence_penalty == 0.0
}

#[expect(clippy::cast_precision_loss, reason = "a count above 2^24 may round")]
fn penalised(logit: f32, count: u32, config: &SamplerConfig) -> f32 {
    let repeated = if logit > 0.0 {
        logit / config.repetition_penalty
    } else {
        logit * config.repetition_penalty
    };
    let less = count as f32 * config.frequency_penalty + config.presence_penalty;
    (repeated - less).min(f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &SamplerConfig, history: &[u32], logits: &[f32], expected: &[f32]) {
        let history: Vec<_> = history.iter().copied().map(TokenId).collect();
        let mut penalties = Penalties::new(logits.len());
        // Twice: the first call must leave no counts behind.
        for _ in 0..2 {
            let mut got = logits.to_vec();
            penalties.apply(config, &history, &mut got).unwrap();
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn hand_computed_tables() {
        let off = SamplerConfig::greedy();
        check(&off, &[0, 1], &[4.0, -4.0, 1.0], &[4.0, -4.0, 1.0]);
        let repetition = SamplerConfig { repetition_penalty: 2.0, ..off.clone() };
        check(&repetition, &[0, 1, 0], &[4.0, -4.0, 1.0], &[2.0, -8.0, 1.0]);
        let frequency = SamplerConfig { frequency_penalty: 0.5, ..off.clone() };
        check(&frequency, &[0, 1, 0], &[4.0, -4.0, 1.0], &[3.0, -4.5, 1.0]);
        let presence = SamplerConfig { presence_penalty: 0.5, ..off.clone() };
        check(&presence, &[0, 1, 0], &[4.0, -4.0, 1.0], &[3.5, -4.5, 1.0]);
        let all = SamplerConfig {
            repetition_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..off
        };
        check(&all, &[0, 1, 0], &[4.0, -4.0, 1.0], &[0.75, -8.75, 1.0]);
        let windowed = SamplerConfig { penalty_window: Some(1), ..all.clone() };
        check(&windowed, &[1, 1, 0], &[4.0, -4.0, 1.0], &[1.25, -4.0, 1.0]);
        let none = SamplerConfig { penalty_window: Some(0), ..all.clone() };
        check(&none, &[1, 1, 0], &[4.0, -4.0, 1.0], &[4.0, -4.0, 1.0]);
        let wide = SamplerConfig { penalty_window: Some(99), ..all };
        check(&wide, &[0], &[f32::NEG_INFINITY], &[f32::NEG_INFINITY]);
    }

    #[test]
    fn extremes_stay_below_infinity() {
        let config = SamplerConfig { repetition_penalty: 1e-6, ..SamplerConfig::greedy() };
        check(&config, &[0], &[f32::MAX], &[f32::MAX]);
    }

    #[test]
    fn a_token_outside_of_the_vocabulary_is_named() {
        let config = SamplerConfig { presence_penalty: 1.0, ..SamplerConfig::greedy() };
        let error = Penalties::new(2).apply(&config, &[TokenId(2)], &mut [0.0, 0.0]).unwrap_err();
        assert_eq!(error.to_string(), "the history holds token 2, but the vocabulary has 2 tokens");
    }
}
