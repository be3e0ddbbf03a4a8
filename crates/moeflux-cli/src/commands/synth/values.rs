//! Random values for the tensors of a synthetic checkpoint.
//!
//! **Invariant:** a value depends only on the seed, the tensor's name and its index in the tensor,
//! so that shards, blocks and threads cannot change it. Weights have zero mean: otherwise all rows
//! would share a direction, and every token would be routed to the same few experts. This module is
//! independent of files.

use half::{bf16, f16};
use moeflux::provider::format::DType;
use moeflux::provider::spec::{FfnSpec, MixerSpec, ModelSpec, RouterSpec};
use moeflux::provider::weights::{SyntheticRole, SyntheticTensor, block_kind};

use super::blocks::{BlockGenerator, SCALE_SPREAD};
use crate::random::RandomStream;

/// The distribution of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Distribution {
    /// Random bits.
    Codes,
    /// The two given numbers.
    Shape([u64; 2]),
    /// Bytes around this one.
    Exponents { middle: u8 },
    /// Magnitudes around this one, of either sign as in MLX.
    Scale { amplitude: f32 },
    /// The offset that moves the middle of the codes to zero: minus the scale at the same index,
    /// times the middle code.
    Bias { amplitude: f32, middle_code: f32 },
    /// A normal distribution.
    Normal { mean: f32, deviation: f32 },
    /// Blocks of codes with their own factors.
    Blocks(BlockGenerator),
    /// Minus the exponential of a uniform value in this range.
    Decay { low: f32, high: f32 },
    /// A uniform value in this range.
    Uniform { low: f32, high: f32 },
    /// A normal distribution around zero, and around `last_mean` for each channel's last tap.
    Taps { n_taps: u64, deviation: f32, last_mean: f32 },
}

/// Rows of keys that resemble the rows of queries before them.
///
/// A delta layer normalises its output after `q . k` has scaled it: for unrelated queries and keys,
/// its sign would depend on a value near zero, and rounding errors would be amplified a
/// thousandfold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyRows {
    /// Rows after which queries and keys repeat.
    period: u64,
    /// The first key row of a period.
    first: u64,
    /// Key rows of a period, and the distance in rows to their queries.
    n_rows: u64,
}

/// Generates the values of one tensor.
#[derive(Clone, Debug)]
pub(super) struct TensorValues {
    stream: RandomStream,
    distribution: Distribution,
    dtype: DType,
    keys: Option<KeyRows>,
    /// Units per row: 4 bytes of codes, a block, or one value.
    row_units: u64,
    /// All values, if they are given.
    integers: Vec<i64>,
}

impl TensorValues {
    /// Returns the generator for `tensor`.
    pub(super) fn new(seed: u64, tensor: &SyntheticTensor, spec: &ModelSpec) -> Self {
        let distribution = distribution(tensor, spec);
        // A bias depends on the scale next to it.
        let name = match distribution {
            Distribution::Bias { .. } => tensor.name.replace(".biases", ".scales"),
            _ => tensor.name.clone(),
        };
        let last_dim = tensor.shape.last().map_or(1, |&n| n as u64);
        let unit_values = match tensor.dtype {
            DType::Block(block) => block.n_values(),
            _ => 1,
        };
        Self {
            stream: RandomStream::new(seed, &name),
            distribution,
            dtype: tensor.dtype,
            keys: key_rows(&tensor.canonical, spec),
            row_units: last_dim / unit_values,
            integers: tensor.integers.clone(),
        }
    }

    /// Writes the tensor's bytes from `offset_bytes`. Offset and length are multiples of 8, unless
    /// the tensor ends there; for blocks, they are multiples of a block.
    pub(super) fn fill(&self, offset_bytes: u64, target: &mut [u8]) {
        if let Distribution::Blocks(blocks) = self.distribution {
            let block_bytes = blocks.block_bytes();
            let first = offset_bytes / block_bytes as u64;
            for (idx, block) in (first..).zip(target.chunks_exact_mut(block_bytes)) {
                blocks.fill(&self.stream, self.source(idx), block);
            }
            return;
        }
        assert!(offset_bytes.is_multiple_of(8), "blocks begin at whole words");
        if !self.integers.is_empty() {
            let first = usize::try_from(offset_bytes / 8).expect("within the given values");
            let values = self.integers[first..].iter().zip(target.chunks_exact_mut(8));
            values.for_each(|(value, target)| target.copy_from_slice(&value.to_le_bytes()));
            return;
        }
        match (self.distribution, self.dtype) {
            (Distribution::Codes, _) => self.fill_codes(offset_bytes, target),
            (Distribution::Shape(shape), _) => {
                let values = (offset_bytes / 8..).zip(target.chunks_exact_mut(8));
                for (idx, target) in values {
                    target.copy_from_slice(&shape[usize::from(idx > 0)].to_le_bytes());
                }
            }
            (Distribution::Exponents { middle }, _) => {
                self.fill_codes(offset_bytes, target);
                target.iter_mut().for_each(|it| *it = middle - 1 + *it % 3);
            }
            (_, DType::F32) => self.fill_floats(offset_bytes, target, f32::to_le_bytes),
            (_, DType::F16) => {
                self.fill_floats(offset_bytes, target, |x| f16::from_f32(x).to_le_bytes());
            }
            (_, dtype) => {
                assert_eq!(dtype, DType::Bf16, "imagined tensors are codes or floats");
                self.fill_floats(offset_bytes, target, |x| bf16::from_f32(x).to_le_bytes());
            }
        }
    }

    fn fill_codes(&self, offset_bytes: u64, target: &mut [u8]) {
        if self.keys.is_some() {
            for (idx, unit) in (offset_bytes / 4..).zip(target.chunks_mut(4)) {
                let source = self.source(idx);
                let [word, high] = [self.stream.word(source / 2), source % 2];
                unit.copy_from_slice(&(word >> (32 * high)).to_le_bytes()[..4]);
            }
            return;
        }
        for (idx, word) in (offset_bytes / 8..).zip(target.chunks_mut(8)) {
            let bytes = self.stream.word(idx).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }

    fn fill_floats<const N: usize>(
        &self,
        offset_bytes: u64,
        target: &mut [u8],
        to_bytes: impl Fn(f32) -> [u8; N],
    ) {
        for (idx, value) in (offset_bytes / N as u64..).zip(target.chunks_exact_mut(N)) {
            value.copy_from_slice(&to_bytes(self.value(self.source(idx))));
        }
    }

    fn value(&self, idx: u64) -> f32 {
        match self.distribution {
            Distribution::Codes
            | Distribution::Shape(_)
            | Distribution::Exponents { .. }
            | Distribution::Blocks(_) => {
                unreachable!("codes are bits")
            }
            Distribution::Decay { low, high } => {
                -(low + (high - low) * self.stream.uniform(idx)).exp()
            }
            Distribution::Scale { amplitude } => self.scale(idx, amplitude),
            Distribution::Bias { amplitude, middle_code } => {
                // Uses the scale as stored; otherwise its rounding would leave a mean.
                -middle_code * self.rounded(self.scale(idx, amplitude))
            }
            Distribution::Normal { mean, deviation } => mean + deviation * self.stream.normal(idx),
            Distribution::Uniform { low, high } => low + (high - low) * self.stream.uniform(idx),
            Distribution::Taps { n_taps, deviation, last_mean } => {
                let mean = if idx % n_taps + 1 == n_taps { last_mean } else { 0.0 };
                mean + deviation * self.stream.normal(idx)
            }
        }
    }

    fn scale(&self, idx: u64, amplitude: f32) -> f32 {
        let spread = 1.0 + SCALE_SPREAD * (2.0 * self.stream.uniform(idx) - 1.0);
        amplitude * spread * self.stream.sign(idx)
    }

    fn rounded(&self, x: f32) -> f32 {
        match self.dtype {
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::Bf16 => bf16::from_f32(x).to_f32(),
            _ => x,
        }
    }

    /// Returns the index whose value is stored at `idx`: a different one in rows of keys.
    fn source(&self, idx: u64) -> u64 {
        let Some(keys) = self.keys else { return idx };
        let in_period = (idx / self.row_units) % keys.period;
        let is_key = (keys.first..keys.first + keys.n_rows).contains(&in_period);
        // Copies four of five, so that keys and queries still differ. Scales are always copied, so
        // that equal codes have equal values.
        let is_scale =
            matches!(self.distribution, Distribution::Scale { .. } | Distribution::Bias { .. });
        if is_key && (is_scale || !self.stream.word(!idx).is_multiple_of(5)) {
            idx - keys.n_rows * self.row_units
        } else {
            idx
        }
    }
}

/// Returns the distribution for a tensor, such that activations have a magnitude of about 1 in all
/// layers.
fn distribution(tensor: &SyntheticTensor, spec: &ModelSpec) -> Distribution {
    let name = tensor.canonical.as_str();
    match tensor.role {
        SyntheticRole::Codes(_) => Distribution::Codes,
        SyntheticRole::Exponents { n_cols } => {
            Distribution::Exponents { middle: exponent(deviation(tensor, n_cols, spec)) }
        }
        SyntheticRole::Scales(rows) => {
            let amplitude = deviation(tensor, rows.n_cols, spec) / code_deviation(rows.params.bits);
            Distribution::Scale { amplitude }
        }
        SyntheticRole::SymmetricScales(rows) => {
            let amplitude = deviation(tensor, rows.n_cols, spec) / code_deviation(rows.params.bits);
            Distribution::Scale { amplitude }
        }
        // The values are given.
        SyntheticRole::Integers => Distribution::Codes,
        SyntheticRole::Shape(shape) => Distribution::Shape(shape.map(|n| n as u64)),
        SyntheticRole::Biases(rows) => {
            let bits = rows.params.bits;
            let amplitude = deviation(tensor, rows.n_cols, spec) / code_deviation(bits);
            Distribution::Bias { amplitude, middle_code: code_max(bits) / 2.0 }
        }
        SyntheticRole::Matrix { n_cols } => {
            let deviation = deviation(tensor, n_cols, spec);
            match tensor.dtype {
                DType::Block(block) => {
                    let kind = block_kind(block).expect("only blocks that run are imagined");
                    Distribution::Blocks(BlockGenerator::new(kind, deviation))
                }
                _ => Distribution::Normal { mean: 0.0, deviation },
            }
        }
        SyntheticRole::Gain => Distribution::Normal { mean: 1.0, deviation: 0.1 },
        SyntheticRole::Taps { n_taps } => Distribution::Taps {
            n_taps: n_taps as u64,
            deviation: inverse_root(n_taps),
            // As in trained models, the current token counts most.
            last_mean: 1.5,
        },
        SyntheticRole::DecayLog => Distribution::Uniform { low: 0.0, high: 2.0 },
        SyntheticRole::Decay => Distribution::Decay { low: 0.0, high: 2.0 },
        // Together with the decays above: some heads forget at once, others last 100 tokens.
        SyntheticRole::Bias if name.ends_with(".dt_bias") => {
            Distribution::Uniform { low: -5.0, high: 0.0 }
        }
        // Larger values would route every token to the same experts.
        SyntheticRole::Bias if name.ends_with(".e_score_correction_bias") => {
            Distribution::Normal { mean: 0.0, deviation: 0.02 }
        }
        SyntheticRole::Bias => Distribution::Normal { mean: 0.0, deviation: 0.1 },
    }
}

/// Returns the exponent, as a byte, of 4-bit floats with weights of this magnitude: uniform over
/// all sixteen codes, with this exponent and both neighbours, the magnitude is 3.87 on average.
#[expect(clippy::cast_possible_truncation, reason = "within 30 of zero")]
#[expect(clippy::cast_sign_loss, reason = "far from zero")]
fn exponent(deviation: f32) -> u8 {
    (127.0 + (deviation / 3.87).log2().round()).clamp(1.0, 253.0) as u8
}

/// Returns the standard deviation for the weights of a matrix.
fn deviation(tensor: &SyntheticTensor, n_cols: usize, spec: &ModelSpec) -> f32 {
    let name = tensor.canonical.as_str();
    if name.contains("embed_tokens.") {
        // A tied table also produces the logits.
        return if spec.tied_embeddings { 1.5 * inverse_root(n_cols) } else { 0.5 };
    }
    if name.contains(".mlp.gate.") {
        return router_gain(spec) * inverse_root(n_cols);
    }
    if name.contains(".embed_q.") {
        // Stored transposed: its product sums over its rows, the latent.
        let n_rows = tensor.shape.iter().rev().nth(1).copied();
        return inverse_root(n_rows.unwrap_or(n_cols));
    }
    inverse_root(n_cols)
}

/// Returns the spread of the router's logits: enough that experts get different weights. A sigmoid
/// has no slope left where a softmax is decided.
fn router_gain(spec: &ModelSpec) -> f32 {
    let is_sigmoid = spec.layers.iter().any(|layer| match &layer.ffn {
        FfnSpec::Moe(moe) => matches!(moe.router, RouterSpec::SigmoidGrouped { .. }),
        FfnSpec::Dense { .. } => false,
    });
    if is_sigmoid { 1.0 } else { 2.0 }
}

fn key_rows(tensor: &str, spec: &ModelSpec) -> Option<KeyRows> {
    let delta = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::GatedDelta(delta) => Some(delta),
        MixerSpec::Attention(_) | MixerSpec::Mla(_) => None,
    })?;
    if tensor.contains(".in_proj_qkv.") {
        let n_rows = (delta.n_k_heads * delta.k_dim) as u64;
        return Some(KeyRows { period: delta.conv_cols() as u64, first: n_rows, n_rows });
    }
    if tensor.contains(".in_proj_qkvz.") {
        // For each key head: queries, keys, values and gates.
        let n_rows = delta.k_dim as u64;
        let values = (delta.n_v_heads / delta.n_k_heads * delta.v_dim) as u64;
        return Some(KeyRows { period: 2 * n_rows + 2 * values, first: n_rows, n_rows });
    }
    None
}

#[expect(clippy::cast_precision_loss, reason = "a magnitude")]
fn inverse_root(n: usize) -> f32 {
    1.0 / (n as f32).sqrt()
}

fn code_max(bits: u8) -> f32 {
    2.0_f32.powi(i32::from(bits)) - 1.0
}

/// Returns the standard deviation of uniform codes, including the spread of the scales.
fn code_deviation(bits: u8) -> f32 {
    let n_codes = code_max(bits) + 1.0;
    let spread = 1.0 + SCALE_SPREAD * SCALE_SPREAD / 3.0;
    ((n_codes * n_codes - 1.0) / 12.0 * spread).sqrt()
}
