//! `glm4_moe`: plain attention with half of each head rotated, DeepSeek's router.

use super::attention_config::{AttentionTraits, attention};
use super::config::Config;
use super::deepseek_v3::{RouterDefaults, ffns};
use super::frame::Frame;
use super::{AttentionBias, Family, LayerSpec, MixerSpec, ModelSpec};
use crate::error::Result;

pub(super) fn parse(config: &Config<'_>) -> Result<ModelSpec> {
    let frame = Frame::parse(config, 1e-5)?;
    config.all_full_attention()?;
    let traits = AttentionTraits {
        has_gate: false,
        has_qk_norm: config.flag_or("use_qk_norm", false)?,
        bias: AttentionBias::Qkv,
        default_rotary_factor: 0.5,
    };
    let mixer = MixerSpec::Attention(attention(config, &traits, frame.hidden)?);
    let defaults = RouterDefaults { n_groups: 1, n_groups_kept: 1, factor: 1.0, n_dense_layers: 1 };
    let ffns = ffns(config, &defaults, frame.n_layers)?;
    let layers = ffns.into_iter().map(|ffn| LayerSpec { mixer: mixer.clone(), ffn }).collect();
    Ok(frame.into_spec(Family::Glm4Moe, layers))
}
