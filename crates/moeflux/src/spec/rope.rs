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
    /// As YaRN, but with limits in wavelengths, and without a factor of cos and sin.
    Llama3(Llama3Spec),
    /// Each frequency is divided by a number in the file: how GGUF files store `Llama3`.
    Stored,
}

/// Parameters of the scaling of Llama 3.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3Spec {
    /// Scaling factor.
    pub factor: f64,
    /// Channels with fewer rotations than this over the original context are divided by the factor.
    pub low_rotations: f64,
    /// Channels with more rotations than this are kept; above `low_rotations`.
    pub high_rotations: f64,
    /// Trained context before scaling.
    pub original_context: usize,
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
    /// Returns the radians per position of each channel pair: `n_rotated / 2` values, before the
    /// division of [`RopeScaling::Stored`].
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
            RopeScaling::Yarn(yarn) => yarn.amplitude as f32,
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3(_)
            | RopeScaling::Stored => 1.0,
        }
    }

    fn frequency(&self, pair: usize) -> f64 {
        let plain = plain_frequency(self.theta, pair, self.n_rotated);
        match &self.scaling {
            RopeScaling::None | RopeScaling::Stored => plain,
            RopeScaling::Llama3(llama) => llama.scaled(plain),
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Yarn(yarn) => {
                let (first, last) = yarn.blend_range(self.theta, self.n_rotated);
                let ramp = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                plain / yarn.factor * ramp + plain * (1.0 - ramp)
            }
        }
    }
}

/// Returns the radians per position of a channel pair without scaling.
pub(crate) fn plain_frequency(theta: f64, pair: usize, n_rotated: usize) -> f64 {
    libm::pow(theta, -(2.0 * pair as f64) / n_rotated as f64)
}

impl Llama3Spec {
    fn scaled(&self, frequency: f64) -> f64 {
        let n_rotations = self.original_context as f64 * frequency / (2.0 * PI);
        let Self { factor, low_rotations: low, high_rotations: high, .. } = *self;
        let kept = ((n_rotations - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - kept) * frequency / factor + kept * frequency
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
