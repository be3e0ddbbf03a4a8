//! `gpt_oss`: sliding windows in every other layer, sinks, biases everywhere, a clamped SwiGLU.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention};
use crate::spec::common::experts::softmax_experts;
use crate::spec::common::rope::RopeDefaults;
use crate::spec::config::CheckedConfig;
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, Family, FfnSpec, LayerSpec, MixerSpec, ModelSpec,
    MoeSpec,
};

/// The factor in the sigmoid of [`Activation::Clamped`].
const ALPHA: f64 = 1.702;

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-5)?;
    let has_rope = |key| config.text.value(key).is_some();
    if !has_rope("rope_scaling") && !has_rope("rope_parameters") {
        return Err(config.text.missing("rope_scaling"));
    }
    let traits = AttentionTraits {
        has_bias_by_default: true,
        rope: RopeDefaults { theta: 150_000.0, ..RopeDefaults::WHOLE },
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let attention = attention(config, &traits, common.hidden)?;
    let attention = AttentionSpec { has_sinks: true, ..attention };
    let moe = FfnSpec::Moe(MoeSpec {
        activation: activation(config)?,
        has_bias: true,
        // A softmax over only the selected logits equals one over all, normalised to sum to 1.
        ..softmax_experts(config, "intermediate_size", true)?
    });
    let layer = |window| {
        let mixer = MixerSpec::Attention(AttentionSpec { window, ..attention.clone() });
        LayerSpec { mixer, ffn: moe.clone() }
    };
    let layers = config.windows(common.n_layers)?.into_iter().map(layer).collect();
    Ok(common.into_spec(Family::GptOss, layers))
}

fn activation(config: &CheckedConfig<'_>) -> Result<Activation> {
    let alpha = config.text.f64_opt("swiglu_alpha")?;
    if alpha.is_some_and(|alpha| (alpha - ALPHA).abs() > 1e-9) {
        return Err(config.text.unsupported("swiglu_alpha", "only 1.702 is supported"));
    }
    Ok(Activation::Clamped { limit: config.positive_or("swiglu_limit", 7.0)? })
}
