//! `qwen2_moe`: a softmax router and a gated shared expert; queries, keys and values have a bias.

use super::attention_config::{AttentionTraits, attention};
use super::config::Config;
use super::experts_config::{ffns, softmax_experts};
use super::frame::Frame;
use super::{AttentionBias, Family, ModelSpec, MoeSpec, SharedExpertSpec};
use crate::error::Result;

pub(super) fn parse(config: &Config<'_>) -> Result<ModelSpec> {
    let frame = Frame::parse(config, 1e-6)?;
    config.all_full_attention()?;
    let traits = AttentionTraits {
        bias_key: "qkv_bias",
        has_bias_by_default: true,
        ..AttentionTraits::plain(AttentionBias::Qkv)
    };
    let attention = attention(config, &traits, frame.hidden)?;
    let renormalise = config.flag_or("norm_topk_prob", false)?;
    let inner = config.width("shared_expert_intermediate_size")?;
    let shared = Some(SharedExpertSpec { inner, is_gated: true });
    let moe = MoeSpec { shared, ..softmax_experts(config, "moe_intermediate_size", renormalise)? };
    let ffns = ffns(config, &config.is_sparse(frame.n_layers)?, &moe)?;
    Ok(frame.with_attention(Family::Qwen2Moe, &attention, ffns))
}
