//! How well logits predict tokens, and how far the logits of two computations are from each other.
//!
//! **Invariant:** sums are in f64 and in the order of the tokens. A value that is not finite is an
//! error, and never part of a sum.

use moeflux::{Error, Result, TokenId};

/// The score of one predicted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenScore {
    /// Its negative log-probability.
    pub(crate) nats: f64,
    /// The comparison with another computation, if there is one.
    pub(crate) compared: Option<ComparedScore>,
}

/// Two computations of the logits for one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ComparedScore {
    /// The token's negative log-probability in the other computation.
    pub(crate) nats: f64,
    /// KL(other || tested).
    pub(crate) kl: f64,
    /// Whether both have the same most probable token.
    pub(crate) is_top_same: bool,
}

/// A predicted token, and its position in its window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextToken {
    pub(crate) position: usize,
    pub(crate) token: TokenId,
}

impl TokenScore {
    /// Scores a token by the logits before it.
    pub(crate) fn of(logits: &[f32], next: NextToken) -> Result<Self> {
        Ok(Self { nats: nats(logits, next)?, compared: None })
    }

    /// Scores a token, and compares the logits with those of another computation.
    pub(crate) fn compared(tested: &[f32], other: &[f32], next: NextToken) -> Result<Self> {
        let (log_z, log_z_other) = (log_sum_exp(tested), log_sum_exp(other));
        let terms = tested.iter().zip(other).map(|(&tested, &other)| {
            let log_p = f64::from(other) - log_z_other;
            let term = log_p.exp() * (log_p - (f64::from(tested) - log_z));
            // Tokens that the other excludes contribute nothing, whatever their tested probability.
            if other == f32::NEG_INFINITY { 0.0 } else { term }
        });
        let kl = terms.sum::<f64>();
        if !kl.is_finite() {
            return Err(Error::Input(format!(
                "the KL divergence for token {} at position {} of its window is {kl}: one of the \
                 two computations has an invalid value",
                next.token.0, next.position
            )));
        }
        let is_top_same = top(tested) == top(other);
        let compared = ComparedScore { nats: nats(other, next)?, kl, is_top_same };
        Ok(Self { nats: nats(tested, next)?, compared: Some(compared) })
    }
}

/// Returns a token's negative log-probability.
fn nats(logits: &[f32], next: NextToken) -> Result<f64> {
    let NextToken { position, token } = next;
    let nats = log_sum_exp(logits) - f64::from(logits[token.0 as usize]);
    match nats.is_finite() {
        true => Ok(nats),
        false => Err(Error::Input(format!(
            "the score of token {} at position {position} of its window is {nats}: the model's \
             weights or arithmetic are broken; try --backend reference",
            token.0
        ))),
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    max + sum.ln()
}

/// Returns the lowest index of the largest logit.
fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (idx, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = idx;
        }
    }
    best
}

/// Sums over predicted tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvalScores {
    pub(crate) n_predicted: usize,
    nats: f64,
    other_nats: f64,
    n_same_top: usize,
    /// The divergence of each compared token.
    kls: Vec<f64>,
}

/// The comparison of two computations over some tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Agreement {
    /// Perplexity of the other computation.
    pub(crate) perplexity: f64,
    /// Share of tokens before which both have the same most probable token.
    pub(crate) top1: f64,
    pub(crate) mean_kl: f64,
    pub(crate) median_kl: f64,
    /// The largest divergence but for one token in a hundred.
    pub(crate) kl_99: f64,
}

impl EvalScores {
    /// Adds a token.
    pub(crate) fn add(&mut self, score: TokenScore) {
        self.n_predicted += 1;
        self.nats += score.nats;
        if let Some(compared) = score.compared {
            self.other_nats += compared.nats;
            self.n_same_top += usize::from(compared.is_top_same);
            self.kls.push(compared.kl);
        }
    }

    /// Returns the sums over several texts.
    pub(crate) fn total(texts: &[Self]) -> Self {
        let mut total = Self::default();
        for text in texts {
            total.n_predicted += text.n_predicted;
            total.nats += text.nats;
            total.other_nats += text.other_nats;
            total.n_same_top += text.n_same_top;
            total.kls.extend_from_slice(&text.kls);
        }
        total
    }

    /// Returns the perplexity.
    pub(crate) fn perplexity(&self) -> f64 {
        mean(self.nats, self.n_predicted).exp()
    }

    /// Returns the bits for each of this number of bytes.
    pub(crate) fn bits_per_byte(&self, n_bytes: usize) -> f64 {
        mean(self.nats / std::f64::consts::LN_2, n_bytes)
    }

    /// Returns the comparison, if there was one.
    pub(crate) fn agreement(&self) -> Option<Agreement> {
        let n = self.kls.len();
        let mut sorted = self.kls.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Agreement {
            median_kl: *sorted.get(n / 2)?,
            kl_99: sorted[(n * 99).div_ceil(100) - 1],
            perplexity: mean(self.other_nats, n).exp(),
            top1: share(self.n_same_top, n),
            mean_kl: mean(self.kls.iter().sum(), n),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and bytes, for display")]
fn mean(sum: f64, n: usize) -> f64 {
    sum / n as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens, for display")]
fn share(part: usize, n: usize) -> f64 {
    part as f64 / n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(position: usize, token: u32) -> NextToken {
        NextToken { position, token: TokenId(token) }
    }

    fn compared(tested: &[f32], other: &[f32]) -> ComparedScore {
        TokenScore::compared(tested, other, next(1, 0)).unwrap().compared.unwrap()
    }

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_vocabulary() {
        let score = TokenScore::of(&[3.0; 8], next(1, 5)).unwrap();
        assert!((score.nats - 8.0_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn a_distribution_has_no_distance_from_itself() {
        let logits = [0.5, -1.0, 2.0, 2.0];
        let score = compared(&logits, &logits);
        assert!(score.kl.abs() < 1e-15 && score.is_top_same);
        let alone = TokenScore::of(&logits, next(1, 0)).unwrap();
        assert_eq!(score.nats.to_bits(), alone.nats.to_bits());
    }

    #[test]
    fn kl_of_a_hand_computed_pair() {
        // p = (1/2, 1/2), q = (3/4, 1/4): KL(p || q) = ln 2 - ln 3 / 2.
        let score = compared(&[3.0_f32.ln(), 0.0], &[0.0, 0.0]);
        assert!((score.kl - (2.0_f64.ln() - 3.0_f64.ln() / 2.0)).abs() < 1e-7);
        assert!((score.nats - 2.0_f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn values_that_are_not_finite_are_reported() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = TokenScore::of(&[0.0, broken], next(7, 1)).unwrap_err().to_string();
            assert!(error.contains("token 1 at position 7"), "{error}");
        }
        assert!(TokenScore::compared(&[f32::NAN, 0.0], &[0.0, 0.0], next(7, 1)).is_err());
        let ruled_out = [0.0, f32::NEG_INFINITY];
        TokenScore::compared(&ruled_out, &ruled_out, next(7, 0)).unwrap();
    }

    #[test]
    fn the_share_of_99_in_100_leaves_the_largest_out() {
        let mut scores = EvalScores::default();
        assert_eq!(scores.agreement(), None);
        for n in (1..=100).rev() {
            let compared = ComparedScore { nats: 0.0, kl: f64::from(n), is_top_same: n > 25 };
            scores.add(TokenScore { nats: 2.0_f64.ln(), compared: Some(compared) });
        }
        let found = scores.agreement().unwrap();
        assert_eq!((found.median_kl, found.kl_99, found.mean_kl), (51.0, 99.0, 50.5));
        assert_eq!((found.top1, found.perplexity), (0.75, 1.0));
        assert!((scores.perplexity() - 2.0).abs() < 1e-12);
    }
}
