//! `qwen3_5_moe`: like `qwen3_next`, but every layer has experts and the router always normalises.

use super::config::CheckedConfig;
use super::frame::CommonConfig;
use super::qwen3_next::{mixers, moe};
use super::{Family, LayerSpec, ModelSpec};
use crate::error::Result;

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let ffn = moe(config, true)?;
    let layer = |mixer| LayerSpec { mixer, ffn: ffn.clone() };
    let layers = mixers(config, &common)?.into_iter().map(layer).collect();
    Ok(common.into_spec(Family::Qwen35Moe, layers))
}
