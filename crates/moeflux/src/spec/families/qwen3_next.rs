//! `qwen3_next`: gated DeltaNet interleaved with gated attention, and a gated shared expert.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention, gated_delta};
use crate::spec::common::experts::softmax_experts;
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::{
    AttentionBias, Family, FfnSpec, LayerSpec, MixerSpec, ModelSpec, MoeSpec, QkNorm,
    SharedExpertSpec,
};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let moe = moe(config, config.flag_or("norm_topk_prob", true)?)?;
    let is_sparse = config.is_sparse(common.n_layers)?;
    let mut layers = Vec::with_capacity(common.n_layers);
    for (mixer, is_sparse) in mixers(config, &common)?.into_iter().zip(is_sparse) {
        let ffn = if is_sparse { moe.clone() } else { config.dense_ffn()? };
        layers.push(LayerSpec { mixer, ffn });
    }
    Ok(common.into_spec(Family::Qwen3Next, layers))
}

/// Returns the mixers of a hybrid model, in order.
pub(super) fn mixers(config: &CheckedConfig<'_>, common: &CommonConfig) -> Result<Vec<MixerSpec>> {
    let traits = AttentionTraits {
        has_gate: true,
        norm: QkNorm::Heads,
        rope: RopeDefaults { rotary_factor: 0.25, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let full = MixerSpec::Attention(attention(config, &traits, common.hidden)?);
    let linear = MixerSpec::GatedDelta(gated_delta(config)?);
    let is_full = config.is_full_attention(common.n_layers, &["full_attention"])?;
    let mixer = |is_full| if is_full { full.clone() } else { linear.clone() };
    Ok(is_full.into_iter().map(mixer).collect())
}

/// Returns routed experts with a gated shared expert.
pub(super) fn moe(config: &CheckedConfig<'_>, renormalise: bool) -> Result<FfnSpec> {
    let inner = config.width("shared_expert_intermediate_size")?;
    let shared = Some(SharedExpertSpec { inner, is_gated: true });
    let routed = softmax_experts(config, "moe_intermediate_size", renormalise)?;
    Ok(FfnSpec::Moe(MoeSpec { shared, ..routed }))
}
