//! Converts a [`ModelSpec`] into the keys of a GGUF file: the inverse of `architectures`.
//!
//! **Invariant:** a model that these keys cannot describe is refused, because the keys are read
//! back and compared. Keys have the names and types that llama.cpp's converters write.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::{Checkpoint, NewPairs, NewValue};
use crate::spec::{
    AttentionSpec, Family, FfnSpec, GatedDeltaSpec, HeadOrder, MixerSpec, MlaSpec, ModelSpec,
    MoeSpec, PositionChoice, RopeScaling, RopeSpec, RouterSpec, YarnSpec,
};

use super::architectures::{SIGMOID, SOFTMAX};

/// Version of the block formats; llama.cpp warns if it is absent.
const QUANTISATION_VERSION: u32 = 2;

/// Relative tolerance of an attention scale that is computed from a stored multiplier.
const SCALE_TOLERANCE: f32 = 1e-6;

/// Precision of a multiplier computed from a scale; further digits are rounding errors.
const MSCALE_STEPS: f64 = 1e4;

impl Family {
    /// Returns `general.architecture` of its GGUF files.
    #[must_use]
    pub fn gguf_architecture(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3moe",
            Self::Qwen3Next => "qwen3next",
            Self::Qwen35Moe => "qwen35moe",
            Self::DeepseekV3 | Self::KimiK2 | Self::KimiK25 | Self::Glm4MoeLite => "deepseek2",
            Self::DeepseekV32 => "deepseek32",
            Self::GlmMoeDsa => "glm-dsa",
            Self::Glm4Moe => "glm4moe",
            Self::GptOss => "gpt-oss",
            Self::MinimaxM2 => "minimax-m2",
            Self::HyV3 => "hy_v3",
            Self::Qwen3VlMoe => "qwen3vlmoe",
            Self::Qwen2Moe => "qwen2moe",
            Self::Mixtral | Self::Llama => "llama",
            Self::Olmoe => "olmoe",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen35 => "qwen35",
            Self::Qwen4Exp => "qwen4exp",
        }
    }

    /// Returns `tokenizer.ggml.pre` of its GGUF files.
    #[must_use]
    pub fn gguf_pre(self) -> &'static str {
        match self {
            Self::Qwen3Moe
            | Self::Qwen3Next
            | Self::Qwen3VlMoe
            | Self::Qwen2Moe
            | Self::Qwen2
            | Self::Qwen3 => "qwen2",
            Self::Qwen35Moe | Self::Qwen35 | Self::Qwen4Exp => "qwen35",
            Self::Llama => "llama-bpe",
            Self::DeepseekV3 | Self::DeepseekV32 => "deepseek-v3",
            Self::KimiK2 | Self::KimiK25 => "kimi-k2",
            Self::Glm4Moe | Self::Glm4MoeLite | Self::GlmMoeDsa => "glm4",
            Self::GptOss => "gpt-4o",
            Self::MinimaxM2 => "minimax-m2",
            Self::HyV3 => "hunyuan",
            Self::Mixtral => "default",
            Self::Olmoe => "olmo",
        }
    }
}

impl ModelSpec {
    /// Returns the keys of a GGUF file with this model.
    #[must_use]
    pub fn gguf_pairs(&self) -> NewPairs {
        let architecture = self.family.gguf_architecture();
        let mut pairs = NewPairs::default();
        pairs.add("general.architecture", NewValue::Text(architecture));
        pairs.add("general.quantization_version", NewValue::U32(QUANTISATION_VERSION));
        let mut keys = NewKeys { architecture, pairs };
        keys.count("block_count", self.layers.len());
        keys.count("context_length", self.context_max);
        keys.count("embedding_length", self.hidden);
        keys.count("vocab_size", self.vocab);
        keys.add("attention.layer_norm_rms_epsilon", NewValue::F32(self.norm_epsilon));
        let mixers = || self.layers.iter().map(|layer| &layer.mixer);
        match mixers().find(|mixer| !matches!(mixer, MixerSpec::GatedDelta(_))) {
            Some(MixerSpec::Attention(attention)) => {
                keys.attention(attention);
                if matches!(self.family, Family::Qwen35Moe | Family::Qwen35) {
                    keys.sections(attention.rope.n_rotated / 2);
                }
            }
            Some(MixerSpec::Mla(mla)) => keys.mla(mla),
            Some(MixerSpec::GatedDelta(_)) | None => {}
        }
        let delta = mixers().find_map(|mixer| match mixer {
            MixerSpec::GatedDelta(delta) => Some(delta),
            MixerSpec::Attention(_) | MixerSpec::Mla(_) => None,
        });
        if let Some(delta) = delta {
            keys.delta(delta);
            let is_delta = |mixer: &MixerSpec| matches!(mixer, MixerSpec::GatedDelta(_));
            keys.recurrent_layers(&mixers().map(is_delta).collect::<Vec<_>>());
        }
        let mut ffns = self.layers.iter().map(|layer| &layer.ffn);
        if let Some(inner) = ffns.find_map(dense_inner) {
            keys.count("feed_forward_length", inner);
        }
        let n_dense = self.layers.iter().take_while(|it| dense_inner(&it.ffn).is_some()).count();
        let moe = self.layers.iter().find_map(|layer| match &layer.ffn {
            FfnSpec::Moe(moe) => Some(moe),
            FfnSpec::Dense { .. } => None,
        });
        if let Some(moe) = moe {
            keys.experts(moe, n_dense);
        }
        keys.pairs
    }

    /// Checks that the keys of a file made from this model describe it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] with the first layer that differs; as [`ModelSpec::from_gguf`].
    pub fn check_gguf(&self, path: &Path, checkpoint: &Checkpoint) -> Result<()> {
        let read = Self::from_gguf(checkpoint)?;
        let mut expected = self.clone().without_what_gguf_lacks();
        let mut found = read.without_what_gguf_lacks();
        for (expected, found) in expected.layers.iter_mut().zip(&mut found.layers) {
            forget_rounding(&mut expected.mixer, &mut found.mixer);
        }
        if expected == found {
            return Ok(());
        }
        let architecture = self.family.gguf_architecture();
        let mut layers = expected.layers.iter().zip(&found.layers);
        let differs = layers.position(|(expected, found)| expected != found);
        let what = differs.map_or_else(String::new, |layer| format!(": layer {layer} differs"));
        Err(Error::Unsupported(format!(
            "{}: GGUF has no keys for this geometry in the architecture \"{architecture}\"{what}",
            path.display()
        )))
    }

    fn without_what_gguf_lacks(mut self) -> Self {
        self.eos.clear();
        self.quantisation = crate::spec::Quantisation::default();
        for layer in &mut self.layers {
            if let MixerSpec::GatedDelta(delta) = &mut layer.mixer {
                delta.order = HeadOrder::Grouped;
            }
        }
        self
    }
}

fn dense_inner(ffn: &FfnSpec) -> Option<usize> {
    match ffn {
        FfnSpec::Dense { inner, .. } => Some(*inner),
        FfnSpec::Moe(_) => None,
    }
}

/// Rounds parameters to f32, as files store them, and accepts a scale within tolerance.
fn forget_rounding(expected: &mut MixerSpec, found: &mut MixerSpec) {
    let round = |rope: &mut RopeSpec| {
        let round = |value: &mut f64| *value = f64::from(to_f32(*value));
        round(&mut rope.theta);
        match &mut rope.scaling {
            RopeScaling::None | RopeScaling::Llama3(_) | RopeScaling::Stored => {}
            RopeScaling::Linear { factor } => round(factor),
            RopeScaling::Yarn(yarn) => {
                let YarnSpec { factor, beta_fast, beta_slow, amplitude, .. } = yarn;
                for value in [factor, beta_fast, beta_slow, amplitude] {
                    round(value);
                }
            }
        }
    };
    match (expected, found) {
        (MixerSpec::Attention(expected), MixerSpec::Attention(found)) => {
            round(&mut expected.rope);
            round(&mut found.rope);
        }
        (MixerSpec::Mla(expected), MixerSpec::Mla(found)) => {
            round(&mut expected.rope);
            round(&mut found.rope);
            if (expected.scale - found.scale).abs() <= SCALE_TOLERANCE * expected.scale {
                found.scale = expected.scale;
            }
        }
        _ => {}
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// The keys of a file, prefixed with the name of the architecture.
struct NewKeys {
    architecture: &'static str,
    pairs: NewPairs,
}

impl NewKeys {
    fn add(&mut self, key: &str, value: NewValue<'_>) {
        self.pairs.add(&format!("{}.{key}", self.architecture), value);
    }

    fn count(&mut self, key: &str, value: usize) {
        // A spec's sizes are far below the maximum.
        self.add(key, NewValue::U32(u32::try_from(value).unwrap_or(u32::MAX)));
    }

    fn number(&mut self, key: &str, value: f64) {
        self.add(key, NewValue::F32(to_f32(value)));
    }

    fn attention(&mut self, spec: &AttentionSpec) {
        self.count("attention.head_count", spec.n_heads);
        self.count("attention.head_count_kv", spec.n_kv_heads);
        self.count("attention.key_length", spec.head_dim);
        self.count("attention.value_length", spec.head_dim);
        self.rope(&spec.rope, None);
    }

    /// Adds the channel pairs that rotate with time, height and width. They are equivalent for
    /// text, but llama.cpp refuses files without this key.
    fn sections(&mut self, n_pairs: usize) {
        let third = n_pairs / 3;
        let sections = [n_pairs - 2 * third, third, third, 0];
        let sections = sections.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        self.add("rope.dimension_sections", NewValue::I32s(&sections));
    }

    fn mla(&mut self, spec: &MlaSpec) {
        self.count("attention.head_count", spec.n_heads);
        // All heads share the cached state of a position.
        self.count("attention.head_count_kv", 1);
        if let Some(rank) = spec.q_rank {
            self.count("attention.q_lora_rank", rank);
        }
        self.count("attention.kv_lora_rank", spec.kv_rank);
        self.count("attention.key_length", spec.kv_rank + spec.rope_dim);
        self.count("attention.value_length", spec.kv_rank);
        self.count("attention.key_length_mla", spec.nope_dim + spec.rope_dim);
        self.count("attention.value_length_mla", spec.v_dim);
        if let Some(PositionChoice::Own(indexer)) = spec.choice {
            self.count("attention.indexer.head_count", indexer.n_heads);
            self.count("attention.indexer.key_length", indexer.head_dim);
            self.count("attention.indexer.top_k", indexer.n_chosen);
        }
        let plain = libm::pow((spec.nope_dim + spec.rope_dim) as f64, -0.5);
        self.rope(&spec.rope, Some(f64::from(spec.scale) / plain));
    }

    /// Adds the rope. `score_factor` is the factor of the scores in latent attention, besides the
    /// root of the width.
    fn rope(&mut self, rope: &RopeSpec, score_factor: Option<f64>) {
        self.count("rope.dimension_count", rope.n_rotated);
        self.number("rope.freq_base", rope.theta);
        let yarn = match &rope.scaling {
            // The divisors would be a tensor.
            RopeScaling::None | RopeScaling::Llama3(_) | RopeScaling::Stored => return,
            RopeScaling::Linear { factor } => {
                self.add("rope.scaling.type", NewValue::Text("linear"));
                return self.number("rope.scaling.factor", *factor);
            }
            RopeScaling::Yarn(yarn) => yarn,
        };
        self.add("rope.scaling.type", NewValue::Text("yarn"));
        self.number("rope.scaling.factor", yarn.factor);
        self.count("rope.scaling.original_context_length", yarn.original_context);
        self.number("rope.scaling.yarn_beta_fast", yarn.beta_fast);
        self.number("rope.scaling.yarn_beta_slow", yarn.beta_slow);
        let mscale = (score_factor.unwrap_or(1.0).sqrt() - 1.0) / (0.1 * libm::log(yarn.factor));
        let mscale = (mscale * MSCALE_STEPS).round() / MSCALE_STEPS;
        let mut amplitude = YarnSpec::temperature(yarn.factor, 1.0);
        if mscale > 0.0 {
            self.number("rope.scaling.yarn_log_multiplier", 0.1 * mscale);
            amplitude = 1.0;
        }
        if to_f32(amplitude).to_bits() != to_f32(yarn.amplitude).to_bits() {
            self.number("rope.scaling.yarn_attn_factor", yarn.amplitude);
        }
    }

    fn delta(&mut self, spec: &GatedDeltaSpec) {
        self.count("ssm.conv_kernel", spec.n_taps);
        self.count("ssm.state_size", spec.k_dim);
        self.count("ssm.group_count", spec.n_k_heads);
        self.count("ssm.time_step_rank", spec.n_v_heads);
        self.count("ssm.inner_size", spec.n_v_heads * spec.v_dim);
    }

    /// Adds the recurrent layers: as an interval if possible, which every version of llama.cpp
    /// reads, otherwise by layer.
    fn recurrent_layers(&mut self, is_recurrent: &[bool]) {
        let interval = is_recurrent.iter().take_while(|it| **it).count() + 1;
        let mut layers = (1..).zip(is_recurrent);
        if layers.all(|(number, it): (usize, _)| *it != number.is_multiple_of(interval)) {
            return self.count("full_attention_interval", interval);
        }
        self.add("attention.recurrent_layers", NewValue::Bools(is_recurrent));
    }

    fn experts(&mut self, moe: &MoeSpec, n_dense: usize) {
        self.count("expert_count", moe.n_experts);
        self.count("expert_used_count", moe.top_k);
        self.count("expert_feed_forward_length", moe.inner);
        let gate = |keys: &mut Self, gate: u64, renormalise: bool| {
            keys.count("expert_gating_func", usize::try_from(gate).unwrap_or(0));
            keys.add("expert_weights_norm", NewValue::Bool(renormalise));
        };
        match moe.router {
            RouterSpec::Only => unreachable!("files have dense layers instead"),
            RouterSpec::Softmax { renormalise } => {
                if let Some(shared) = moe.shared {
                    self.count("expert_shared_feed_forward_length", shared.inner);
                }
                gate(self, SOFTMAX, renormalise);
            }
            RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, renormalise, factor } => {
                gate(self, SIGMOID, renormalise);
                let shared = moe.shared.map_or(0, |shared| shared.inner);
                self.count("expert_shared_count", shared / moe.inner.max(1));
                self.add("expert_weights_scale", NewValue::F32(factor));
                self.count("expert_group_count", n_groups);
                self.count("expert_group_used_count", n_groups_kept);
                self.count("leading_dense_block_count", n_dense);
            }
        }
    }
}
