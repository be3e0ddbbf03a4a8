//! `qwen3_5_moe`: like `qwen3_next`, but every layer has experts and the router always normalises.

use super::config::Config;
use super::frame::Frame;
use super::qwen3_next::{mixers, moe};
use super::{Family, LayerSpec, ModelSpec};
use crate::error::Result;

pub(super) fn parse(config: &Config<'_>) -> Result<ModelSpec> {
    let frame = Frame::parse(config, 1e-6)?;
    let ffn = moe(config, true)?;
    let layer = |mixer| LayerSpec { mixer, ffn: ffn.clone() };
    let layers = mixers(config, &frame)?.into_iter().map(layer).collect();
    Ok(frame.into_spec(Family::Qwen35Moe, layers))
}
