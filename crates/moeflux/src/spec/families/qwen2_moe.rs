//! `qwen2_moe`: a softmax router and a gated shared expert; queries, keys and values have a bias.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::experts::{ffns, softmax_experts};
use crate::spec::config::CheckedConfig;
use crate::spec::{AttentionBias, Family, ModelSpec, MoeSpec, SharedExpertSpec};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    config.all_full_attention()?;
    let traits = AttentionTraits {
        bias_key: "qkv_bias",
        has_bias_by_default: true,
        ..AttentionTraits::plain(AttentionBias::Qkv)
    };
    let attention = attention(config, &traits, common.hidden)?;
    let renormalise = config.flag_or("norm_topk_prob", false)?;
    let inner = config.width("shared_expert_intermediate_size")?;
    let shared = Some(SharedExpertSpec { inner, is_gated: true });
    let moe = MoeSpec { shared, ..softmax_experts(config, "moe_intermediate_size", renormalise)? };
    let ffns = ffns(config, &config.is_sparse(common.n_layers)?, &moe)?;
    Ok(common.with_attention(Family::Qwen2Moe, &attention, ffns))
}
