//! `qwen3_moe` and the language model of `qwen3_vl_moe`: normalised queries and keys, a softmax
//! router, no shared expert.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::experts::{ffns, softmax_experts};
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::{AttentionBias, Family, ModelSpec, QkNorm};

pub(super) fn parse(config: &CheckedConfig<'_>, family: Family) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    config.all_full_attention()?;
    let is_vl = family == Family::Qwen3VlMoe;
    let theta = if is_vl { 500_000.0 } else { RopeDefaults::WHOLE.theta };
    let traits = AttentionTraits {
        norm: QkNorm::Heads,
        rope: RopeDefaults { theta, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let attention = attention(config, &traits, common.hidden)?;
    // The config of the vision model has no such key.
    let renormalise = is_vl || config.flag_or("norm_topk_prob", false)?;
    let moe = softmax_experts(config, "moe_intermediate_size", renormalise)?;
    let ffns = ffns(config, &config.is_sparse(common.n_layers)?, &moe)?;
    Ok(common.with_attention(family, &attention, ffns))
}
