//! `minimax_m2`: queries and keys normalised as whole rows, partial rope, and experts in every
//! layer with a sigmoid router and a correction bias.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::experts::{ffns, sigmoid_experts};
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::{AttentionBias, Family, ModelSpec, QkNorm};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    // Configs declare these traits in separate keys.
    for (key, known) in [("scoring_func", "sigmoid"), ("qk_norm_type", "per_layer")] {
        if config.text.str_opt(key)?.is_some_and(|name| name != known) {
            return Err(config.text.unsupported(key, &format!("only \"{known}\" is supported")));
        }
    }
    let rope = RopeDefaults { theta: 5e6, rotary_factor: rotary_factor(config, common.hidden)? };
    let norm = if config.flag_or("use_qk_norm", true)? { QkNorm::Row } else { QkNorm::None };
    let traits = AttentionTraits { norm, rope, ..AttentionTraits::plain(AttentionBias::None) };
    let attention = attention(config, &traits, common.hidden)?;
    let moe = sigmoid_experts(config, "intermediate_size", 1.0, None)?;
    let ffns = ffns(config, &vec![true; common.n_layers], &moe)?;
    Ok(common.with_attention(Family::MinimaxM2, &attention, ffns))
}

/// Returns the rotated fraction of a head. Published configs give the number of rotated channels.
fn rotary_factor(config: &CheckedConfig<'_>, hidden: usize) -> Result<f64> {
    let Some(n_rotated) = config.text.usize_opt("rotary_dim")? else { return Ok(1.0) };
    let n_heads = config.width("num_attention_heads")?;
    let head_dim = config.width_or("head_dim", hidden / n_heads)?;
    Ok(n_rotated as f64 / head_dim as f64)
}
