//! `glm4_moe`: plain attention with half of each head rotated, and DeepSeek's router.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::families::deepseek_v3::{RouterDefaults, ffns};
use crate::spec::{AttentionBias, Family, ModelSpec, QkNorm};

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
