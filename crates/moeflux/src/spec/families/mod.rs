//! Parses `config.json` into a [`ModelSpec`], by family. Each file below has the keys of one family
//! and of its relatives.
//!
//! **Invariant:** an unknown family or feature is refused, and the error names it.

mod qwen3_moe;
mod qwen2_moe;
mod mixtral;
mod gpt_oss;
mod qwen3_next;
mod qwen3_5_moe;
mod indexer;
mod qwen4_exp;
mod dense;
mod deepseek_v3;
mod glm4_moe;
mod minimax_m2;
mod hy_v3;

use crate::error::{Error, Result};
use crate::format::RawConfig;
use crate::spec::config::CheckedConfig;
use crate::spec::{Family, FfnSpec, LayerSpec, ModelSpec};

/// Upper bound on the values of all experts: a million times the largest known number, while their
/// bytes still fit into 64 bits. Only experts can exceed it, because their size is a product of
/// four numbers in the config.
const EXPERT_VALUES_MAX: u128 = 1 << 60;

/// Additional `model_type` names of language models.
const OTHER_NAMES: [(&str, Family); 4] = [
    ("qwen3_5_moe_text", Family::Qwen35Moe),
    ("qwen3_vl_moe_text", Family::Qwen3VlMoe),
    ("qwen3_5_text", Family::Qwen35),
    ("qwen4_exp_text", Family::Qwen4Exp),
];

impl Family {
    /// Returns the family of a `model_type`.
    fn of_type(model_type: &str) -> Option<Self> {
        let names = Self::ALL.into_iter().map(|(family, name)| (name, family));
        let mut rows = names.chain(OTHER_NAMES);
        rows.find(|(name, _)| *name == model_type).map(|(_, family)| family)
    }

    fn parse(self, config: &CheckedConfig<'_>) -> Result<ModelSpec> {
        match self {
            Self::Qwen3Moe | Self::Qwen3VlMoe => qwen3_moe::parse(config, self),
            Self::Qwen3Next => qwen3_next::parse(config),
            Self::Qwen35Moe => qwen3_5_moe::parse(config),
            Self::Qwen35 => qwen3_5_moe::parse_dense(config),
            Self::Qwen4Exp => qwen4_exp::parse(config),
            Self::Qwen2 | Self::Qwen3 | Self::Llama => dense::parse(config, self),
            Self::DeepseekV3
            | Self::KimiK2
            | Self::KimiK25
            | Self::DeepseekV32
            | Self::GlmMoeDsa
            | Self::Glm4MoeLite => deepseek_v3::parse(config, self),
            Self::Glm4Moe => glm4_moe::parse(config),
            Self::GptOss => gpt_oss::parse(config),
            Self::MinimaxM2 => minimax_m2::parse(config),
            Self::HyV3 => hy_v3::parse(config),
            Self::Qwen2Moe => qwen2_moe::parse(config),
            Self::Mixtral => mixtral::parse_mixtral(config),
            Self::Olmoe => mixtral::parse_olmoe(config),
        }
    }
}

impl ModelSpec {
    /// Parses the model that a config describes.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for a key that is missing or has an impossible value;
    /// [`Error::Unsupported`] for a model or feature that is not supported.
    pub fn from_config(raw: &RawConfig) -> Result<Self> {
        let config = CheckedConfig { root: raw.root(), text: raw.text()? };
        let Some(name) = config.root.str_opt("model_type")? else {
            return Err(config.root.missing("model_type"));
        };
        let family = Family::of_type(name).ok_or_else(|| unknown_type(&config))?;
        let spec = family.parse(&config)?;
        let n_values = expert_values(&spec);
        if n_values > EXPERT_VALUES_MAX {
            let problem =
                format!("describes {n_values} weights of experts, more than any disk can hold");
            return Err(Error::malformed(raw.path(), problem));
        }
        Ok(spec)
    }
}

fn expert_values(spec: &ModelSpec) -> u128 {
    let of_layer = |layer: &LayerSpec| match &layer.ffn {
        FfnSpec::Moe(moe) => moe.n_experts as u128 * 3 * moe.inner as u128 * spec.hidden as u128,
        FfnSpec::Dense { .. } => 0,
    };
    spec.layers.iter().map(of_layer).sum()
}

fn unknown_type(config: &CheckedConfig<'_>) -> Error {
    let known = Family::ALL.map(|(_, name)| name).join(", ");
    let advice = format!("this family is not supported yet; supported are {known}");
    config.root.unsupported("model_type", &advice)
}
