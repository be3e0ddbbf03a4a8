//! `mixtral` and `olmoe`: experts in every layer with a softmax router. The inner width of an
//! expert is under the key of a dense layer.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::experts::{ffns, softmax_experts};
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::{AttentionBias, AttentionSpec, Family, ModelSpec, QkNorm};

const INNER: &str = "intermediate_size";

pub(super) fn parse_mixtral(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-5)?;
    let traits = AttentionTraits {
        rope: RopeDefaults { theta: 1e6, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::None)
    };
    let attention = attention(config, &traits, common.hidden)?;
    let attention = AttentionSpec { window: config.window_opt()?, ..attention };
    let moe = softmax_experts(config, INNER, true)?;
    let ffns = ffns(config, &vec![true; common.n_layers], &moe)?;
    Ok(common.with_attention(Family::Mixtral, &attention, ffns))
}

pub(super) fn parse_olmoe(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-5)?;
    if config.text.value("clip_qkv").is_some() {
        let advice = "clipped queries, keys and values are not supported";
        return Err(config.text.unsupported("clip_qkv", advice));
    }
    let bias = AttentionBias::QkvAndOut;
    let traits = AttentionTraits { norm: QkNorm::Row, ..AttentionTraits::plain(bias) };
    let attention = attention(config, &traits, common.hidden)?;
    let moe = softmax_experts(config, INNER, config.flag_or("norm_topk_prob", false)?)?;
    let ffns = ffns(config, &vec![true; common.n_layers], &moe)?;
    Ok(common.with_attention(Family::Olmoe, &attention, ffns))
}
