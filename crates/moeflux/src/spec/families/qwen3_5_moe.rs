//! `qwen3_5_moe`: like `qwen3_next`, but every layer has experts and the router always normalises.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::config::CheckedConfig;
use crate::spec::families::qwen3_next::{mixers, moe};
use crate::spec::{Family, LayerSpec, ModelSpec};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let ffn = moe(config, true)?;
    let layer = |mixer| LayerSpec { mixer, ffn: ffn.clone() };
    let layers = mixers(config, &common)?.into_iter().map(layer).collect();
    Ok(common.into_spec(Family::Qwen35Moe, layers))
}
