//! `glm4_moe`: plain attention with half of each head rotated, and DeepSeek's router.

use super::attention_config::{AttentionTraits, attention};
use super::config::CheckedConfig;
use super::deepseek_v3::{RouterDefaults, ffns};
use super::frame::CommonConfig;
use super::rope_config::RopeDefaults;
use super::{AttentionBias, Family, ModelSpec, QkNorm};
use crate::error::Result;

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-5)?;
    config.all_full_attention()?;
    let has_norm = config.flag_or("use_qk_norm", false)?;
    let traits = AttentionTraits {
        norm: if has_norm { QkNorm::Heads } else { QkNorm::None },
        rope: RopeDefaults { rotary_factor: 0.5, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::Qkv)
    };
    let attention = attention(config, &traits, common.hidden)?;
    let defaults = RouterDefaults { n_groups: 1, n_groups_kept: 1, factor: 1.0, n_dense_layers: 1 };
    let ffns = ffns(config, &defaults, common.n_layers)?;
    Ok(common.with_attention(Family::Glm4Moe, &attention, ffns))
}
