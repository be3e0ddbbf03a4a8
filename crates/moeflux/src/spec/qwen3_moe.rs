//! `qwen3_moe`: normed queries and keys, a softmax router, no shared expert.

use super::attention_config::{AttentionTraits, attention};
use super::config::Config;
use super::frame::Frame;
use super::{AttentionBias, Family, FfnSpec, LayerSpec, MixerSpec, ModelSpec, MoeSpec, RouterSpec};
use crate::error::Result;

pub(super) fn parse(config: &Config<'_>) -> Result<ModelSpec> {
    let frame = Frame::parse(config, 1e-6)?;
    config.all_full_attention()?;
    let traits = AttentionTraits {
        has_gate: false,
        has_qk_norm: true,
        bias: AttentionBias::QkvAndOut,
        default_rotary_factor: 1.0,
    };
    let mixer = MixerSpec::Attention(attention(config, &traits, frame.hidden)?);
    let n_experts = config.n_experts(&["num_experts", "num_local_experts"])?;
    let moe = FfnSpec::Moe(MoeSpec {
        n_experts,
        top_k: config.top_k(n_experts)?,
        inner: config.width("moe_intermediate_size")?,
        router: RouterSpec::Softmax { renormalise: config.flag_or("norm_topk_prob", false)? },
        shared: None,
    });
    let layer = |is_sparse| {
        let ffn = if is_sparse { moe.clone() } else { config.dense_ffn()? };
        Ok(LayerSpec { mixer: mixer.clone(), ffn })
    };
    let layers = config.is_sparse(frame.n_layers)?.into_iter().map(layer);
    let layers = layers.collect::<Result<Vec<_>>>()?;
    Ok(frame.into_spec(Family::Qwen3Moe, layers))
}
