//! Rotary position encoding: the channels that rotate, their frequencies, and YaRN scaling.
//!
//! Frequencies are computed in f64 and rounded once.

use std::f64::consts::PI;

/// The pairs of channels in a head that rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + n / 2` of the `n` rotated channels.
    Halves,
    /// `2 i` and `2 i + 1`.
    Neighbours,
}

/// A rotary encoding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of rotated channels, from the first of a head; even.
    pub n_rotated: usize,
    /// Pairs of channels that rotate together.
    pub pairing: Pairing,
    /// Scaling beyond the trained context.
    pub scaling: RopeScaling,
}

/// The scaling of a rope beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Low frequencies are divided, high ones are kept, and those between are blended.
    Yarn(YarnSpec),
}

/// YaRN's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct YarnSpec {
    /// Scaling factor.
    pub factor: f64,
    /// Trained context before scaling.
    pub original_context: usize,
    /// Channels with more rotations than this over the original context are kept.
    pub beta_fast: f64,
    /// Channels with fewer rotations than this are divided by the factor.
    pub beta_slow: f64,
    /// Factor of cos and sin.
    pub amplitude: f64,
    /// Whether the limits of the blend are rounded to whole channels.
    pub is_truncated: bool,
}

impl RopeSpec {
    /// Returns the radians per position of each channel pair: `n_rotated / 2` values.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    pub fn frequencies(&self) -> Vec<f32> {
        (0..self.n_rotated / 2).map(|pair| self.frequency(pair) as f32).collect()
    }

    /// Returns the factor of cos and sin.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    pub fn amplitude(&self) -> f32 {
        match &self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
            RopeScaling::Yarn(yarn) => yarn.amplitude as f32,
        }
    }

    fn frequency(&self, pair: usize) -> f64 {
        let plain = libm::pow(self.theta, -(2.0 * pair as f64) / self.n_rotated as f64);
        match &self.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Yarn(yarn) => {
                let (first, last) = yarn.blend_range(self.theta, self.n_rotated);
                let ramp = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                plain / yarn.factor * ramp + plain * (1.0 - ramp)
            }
        }
    }
}

impl YarnSpec {
    /// Returns the pairs between which frequencies are blended.
    fn blend_range(&self, theta: f64, n_rotated: usize) -> (f64, f64) {
        let pair_that_turns = |n_turns: f64| {
            let wavelength = self.original_context as f64 / (n_turns * 2.0 * PI);
            n_rotated as f64 * libm::log(wavelength) / (2.0 * libm::log(theta))
        };
        let mut first = pair_that_turns(self.beta_fast);
        let mut last = pair_that_turns(self.beta_slow);
        if self.is_truncated {
            first = first.floor();
            last = last.ceil();
        }
        let first = first.max(0.0);
        let mut last = last.min(n_rotated as f64 - 1.0);
        if (last - first).abs() < f64::EPSILON {
            // Keeps the ramp finite if both limits fall on the same pair.
            last += 0.001;
        }
        (first, last)
    }

    /// Returns `0.1 * mscale * ln(factor) + 1`, the temperature for a scaling factor.
    #[must_use]
    pub fn temperature(factor: f64, mscale: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 }
    }
}
