//! Parses grouped-query attention and gated DeltaNet from the families' configs.

use crate::error::Result;
use crate::spec::common::rope::{self, RopeDefaults};
use crate::spec::config::CheckedConfig;
use crate::spec::{
    AttentionBias, AttentionSpec, GateFunction, GatedDeltaSpec, HeadOrder, Pairing, QkNorm,
};

/// Upper bound on taps of a convolution: known models have 4, and each tap is a row of state.
pub(in crate::spec) const N_TAPS_MAX: usize = 64;

/// The traits in which the families' attentions differ.
pub(in crate::spec) struct AttentionTraits {
    pub(in crate::spec) has_gate: bool,
    pub(in crate::spec) norm: QkNorm,
    /// Bias that the flag under `bias_key` enables.
    pub(in crate::spec) bias: AttentionBias,
    pub(in crate::spec) bias_key: &'static str,
    pub(in crate::spec) has_bias_by_default: bool,
    pub(in crate::spec) rope: RopeDefaults,
}

impl AttentionTraits {
    /// No gate, no norms, rope over whole heads, and a bias if `attention_bias` is set.
    pub(in crate::spec) const fn plain(bias: AttentionBias) -> Self {
        Self {
            has_gate: false,
            norm: QkNorm::None,
            bias,
            bias_key: "attention_bias",
            has_bias_by_default: false,
            rope: RopeDefaults::WHOLE,
        }
    }
}

/// Parses an attention without window or sinks.
pub(in crate::spec) fn attention(
    config: &CheckedConfig<'_>,
    traits: &AttentionTraits,
    hidden: usize,
) -> Result<AttentionSpec> {
    let n_heads = config.width("num_attention_heads")?;
    let n_kv_heads = config.width_or("num_key_value_heads", n_heads)?;
    config.divides(("num_key_value_heads", n_kv_heads), ("num_attention_heads", n_heads))?;
    let head_dim = config.width_or("head_dim", hidden / n_heads)?;
    config.fits(("num_attention_heads", n_heads), ("head_dim", head_dim))?;
    let has_bias = config.flag_or(traits.bias_key, traits.has_bias_by_default)?;
    let rope = rope::parse(config, ("head_dim", head_dim), traits.rope)?;
    Ok(AttentionSpec {
        n_heads,
        n_kv_heads,
        head_dim,
        rope: rope.with_pairing(Pairing::Halves),
        has_gate: traits.has_gate,
        norm: traits.norm,
        bias: if has_bias { traits.bias } else { AttentionBias::None },
        window: None,
        has_sinks: false,
        indexer: None,
    })
}

pub(in crate::spec) fn gated_delta(config: &CheckedConfig<'_>) -> Result<GatedDeltaSpec> {
    let n_k_heads = config.width_or("linear_num_key_heads", 16)?;
    let n_v_heads = config.width_or("linear_num_value_heads", 32)?;
    let k_dim = config.width_or("linear_key_head_dim", 128)?;
    let v_dim = config.width_or("linear_value_head_dim", 128)?;
    config.divides(("linear_num_key_heads", n_k_heads), ("linear_num_value_heads", n_v_heads))?;
    config.fits(("linear_num_key_heads", n_k_heads), ("linear_key_head_dim", k_dim))?;
    config.fits(("linear_num_value_heads", n_v_heads), ("linear_value_head_dim", v_dim))?;
    // A session keeps a state of values times keys per head.
    config.fits(("linear_value_head_dim", v_dim), ("linear_key_head_dim", k_dim))?;
    let n_taps = config.width_or("linear_conv_kernel_dim", 4)?;
    if n_taps > N_TAPS_MAX {
        let expected = format!("at most {N_TAPS_MAX} taps");
        return Err(config.text.wrong("linear_conv_kernel_dim", &expected));
    }
    let (order, gate) = (HeadOrder::Grouped, GateFunction::Silu);
    Ok(GatedDeltaSpec { n_k_heads, n_v_heads, k_dim, v_dim, n_taps, order, gate })
}
