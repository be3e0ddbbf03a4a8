//! `qwen3_5_moe` and `qwen3_5`: like `qwen3_next`, but every layer has experts and the router
//! always normalises, or no layer has experts.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::config::CheckedConfig;
use crate::spec::families::qwen3_next::{mixers, moe};
use crate::spec::{Family, FfnSpec, LayerSpec, ModelSpec};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    hybrid(config, Family::Qwen35Moe, |config| moe(config, true))
}

pub(super) fn parse_dense(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    hybrid(config, Family::Qwen35, CheckedConfig::dense_ffn)
}

/// Builds a spec with the same feed-forward in every layer.
fn hybrid<'a>(
    config: &CheckedConfig<'a>,
    family: Family,
    ffn: impl FnOnce(&CheckedConfig<'a>) -> Result<FfnSpec>,
) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let ffn = ffn(config)?;
    let layer = |mixer| LayerSpec { mixer, ffn: ffn.clone() };
    let layers = mixers(config, &common)?.into_iter().map(layer).collect();
    Ok(common.into_spec(family, layers))
}
