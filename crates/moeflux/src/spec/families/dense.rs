//! `qwen2`, `qwen3` and `llama`: grouped-query attention, and the same dense feed-forward in every
//! layer.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::config::CheckedConfig;
use crate::spec::{AttentionBias, Family, FfnSpec, ModelSpec, QkNorm};

pub(super) fn parse(config: &CheckedConfig<'_>, family: Family) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let traits = match family {
        // No key says so.
        Family::Qwen2 => AttentionTraits {
            bias_key: "qkv_bias",
            has_bias_by_default: true,
            ..AttentionTraits::plain(AttentionBias::Qkv)
        },
        Family::Qwen3 => AttentionTraits {
            norm: QkNorm::Heads,
            ..AttentionTraits::plain(AttentionBias::QkvAndOut)
        },
        _ => AttentionTraits::plain(AttentionBias::QkvAndOut),
    };
    let mut ffn = config.dense_ffn()?;
    if family == Family::Llama {
        if let FfnSpec::Dense { has_bias, .. } = &mut ffn {
            *has_bias = config.flag_or("mlp_bias", false)?;
        }
    } else {
        config.all_full_attention()?;
    }
    let attention = attention(config, &traits, common.hidden)?;
    let ffns = vec![ffn; common.n_layers];
    Ok(common.with_attention(family, &attention, ffns))
}
