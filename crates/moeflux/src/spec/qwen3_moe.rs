//! `qwen3_moe` and the language model of `qwen3_vl_moe`: normalised queries and keys, a softmax
//! router, no shared expert.

use super::attention_config::{AttentionTraits, attention};
use super::config::Config;
use super::experts_config::{ffns, softmax_experts};
use super::frame::Frame;
use super::rope_config::RopeDefaults;
use super::{AttentionBias, Family, ModelSpec, QkNorm};
use crate::error::Result;

pub(super) fn parse(config: &Config<'_>, family: Family) -> Result<ModelSpec> {
    let frame = Frame::parse(config, 1e-6)?;
    config.all_full_attention()?;
    let is_vl = family == Family::Qwen3VlMoe;
    let theta = if is_vl { 500_000.0 } else { RopeDefaults::WHOLE.theta };
    let traits = AttentionTraits {
        norm: QkNorm::Heads,
        rope: RopeDefaults { theta, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let attention = attention(config, &traits, frame.hidden)?;
    // The config of the vision model has no such key.
    let renormalise = is_vl || config.flag_or("norm_topk_prob", false)?;
    let moe = softmax_experts(config, "moe_intermediate_size", renormalise)?;
    let ffns = ffns(config, &config.is_sparse(frame.n_layers)?, &moe)?;
    Ok(frame.with_attention(family, &attention, ffns))
}
