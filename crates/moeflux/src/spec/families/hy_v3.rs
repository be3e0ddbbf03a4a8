//! `hy_v3`: normalised queries and keys, a sigmoid router with a correction bias, a shared expert.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::experts::{ffns, sigmoid_experts};
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::{AttentionBias, Family, ModelSpec, QkNorm, SharedExpertSpec};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-5)?;
    for (key, known) in [
        ("route_norm", true),
        ("qk_norm", true),
        ("moe_router_use_sigmoid", true),
        ("mlp_bias", false),
    ] {
        if config.flag_or(key, known)? != known {
            return Err(config.text.unsupported(key, &format!("only {known} is supported")));
        }
    }
    let traits = AttentionTraits {
        norm: QkNorm::Heads,
        rope: RopeDefaults { theta: 11_158_840.0, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let attention = attention(config, &traits, common.hidden)?;
    let inner_key = "moe_intermediate_size";
    let inner = config.width(inner_key)?;
    let n_shared = config.width_or("num_shared_experts", 1)?;
    config.fits(("num_shared_experts", n_shared), (inner_key, inner))?;
    let shared = SharedExpertSpec { inner: inner * n_shared, is_gated: false };
    let factor = config.positive_or("router_scaling_factor", 2.826)?;
    let moe = sigmoid_experts(config, inner_key, factor, Some(shared))?;
    let ffns = ffns(config, &config.is_sparse_after_dense(1, common.n_layers)?, &moe)?;
    Ok(common.with_attention(Family::HyV3, &attention, ffns))
}
