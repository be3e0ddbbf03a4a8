//! `config.json` to a [`ModelSpec`]: which family it is, and what all families share.
//!
//! **Invariant:** every number that leaves here is within the limits below, so that products of
//! two of them and a type's size fit into 64 bits and no table is built by a lie. Published keys
//! and those that transformers 5 writes are both read.

use super::{
    Family, FfnSpec, LayerSpec, ModelSpec, Quantisation, deepseek_v3, glm4_moe, quantisation,
    qwen3_5_moe, qwen3_moe, qwen3_next,
};
use crate::error::{Error, Result};
use crate::format::{RawConfig, Section};
use crate::ids::TokenId;

/// Forty times the deepest known.
const N_LAYERS_MAX: usize = 4096;
/// A hundred times the most known.
const N_EXPERTS_MAX: usize = 65_536;
/// Of the residual stream, of all heads together and of an inner layer.
const WIDTH_MAX: usize = 1 << 20;
const VOCAB_MAX: usize = 1 << 24;
const CONTEXT_MAX: usize = 1 << 30;
/// A million times the largest known, and yet their bytes fit into 64 bits. Only experts can have
/// more: four numbers of the config are multiplied for them.
const EXPERT_VALUES_MAX: u128 = 1 << 60;

/// Names of the number of routed experts.
const EXPERT_COUNT_KEYS: [&str; 4] =
    ["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"];

/// Parts of the names of other families that have experts.
const MORE_SPARSE_TYPES: [&str; 16] = [
    "moe",
    "gpt_oss",
    "mixtral",
    "minimax",
    "deepseek_v",
    "kimi",
    "glm4",
    "glm_",
    "dbrx",
    "jamba",
    "llama4",
    "hunyuan",
    "hy_v",
    "arctic",
    "grok",
    "step3",
];

const KNOWN_TYPES: &str =
    "qwen3_moe, qwen3_next, qwen3_5_moe, qwen3_5_moe_text, deepseek_v3, kimi_k2, glm4_moe";

impl ModelSpec {
    /// The model that a config describes.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for a key that is missing or of an impossible value,
    /// [`Error::Unsupported`] for a model or a feature that this program does not know.
    pub fn from_config(raw: &RawConfig) -> Result<Self> {
        let config = Config { root: raw.root(), text: raw.text()? };
        let spec = match config.root.str_opt("model_type")? {
            Some("qwen3_moe") => qwen3_moe::parse(&config),
            Some("qwen3_next") => qwen3_next::parse(&config),
            Some("qwen3_5_moe" | "qwen3_5_moe_text") => qwen3_5_moe::parse(&config),
            Some("deepseek_v3") => deepseek_v3::parse(&config, Family::DeepseekV3),
            Some("kimi_k2") => deepseek_v3::parse(&config, Family::KimiK2),
            Some("glm4_moe") => glm4_moe::parse(&config),
            Some(_) => Err(config.unknown_type()),
            None => Err(config.root.missing("model_type")),
        }?;
        let n_values = expert_values(&spec);
        if n_values > EXPERT_VALUES_MAX {
            let problem = format!("describes {n_values} weights of experts; no disk has room");
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

/// A config with getters that know the limits of a model.
pub(super) struct Config<'a> {
    pub(super) root: Section<'a>,
    /// The language model's part.
    pub(super) text: Section<'a>,
}

impl Config<'_> {
    fn unknown_type(&self) -> Error {
        let name = self.root.value("model_type").and_then(|it| it.as_str()).unwrap_or_default();
        // Configs may leave out what is their family's default.
        let is_sparse = MORE_SPARSE_TYPES.iter().any(|part| name.contains(part))
            || EXPERT_COUNT_KEYS.iter().any(|key| self.text.value(key).is_some());
        let advice = if is_sparse {
            format!("this family is not supported yet; supported are {KNOWN_TYPES}")
        } else {
            format!(
                "this is a dense model as far as its config says, and moeflux runs \
                 Mixture-of-Experts models; supported are {KNOWN_TYPES}"
            )
        };
        self.root.unsupported("model_type", &advice)
    }

    /// A count from 1 to `max`.
    fn count(&self, key: &str, max: usize) -> Result<usize> {
        self.checked(key, self.text.usize_at(key)?, max)
    }

    fn checked(&self, key: &str, value: usize, max: usize) -> Result<usize> {
        if (1..=max).contains(&value) {
            return Ok(value);
        }
        Err(self.text.wrong(key, &format!("an integer from 1 to {max}")))
    }

    /// A width that must be there.
    pub(super) fn width(&self, key: &str) -> Result<usize> {
        self.count(key, WIDTH_MAX)
    }

    /// A width with a default.
    pub(super) fn width_or(&self, key: &str, default: usize) -> Result<usize> {
        self.checked(key, self.text.usize_opt(key)?.unwrap_or(default), WIDTH_MAX)
    }

    /// The number of routed experts, by the first of its names that is there.
    pub(super) fn n_experts(&self, names: &[&str]) -> Result<usize> {
        self.count(self.text.present(names), N_EXPERTS_MAX)
    }

    /// Experts per token.
    pub(super) fn top_k(&self, n_experts: usize) -> Result<usize> {
        let key = "num_experts_per_tok";
        let top_k = self.text.usize_at(key)?;
        if (1..=n_experts).contains(&top_k) {
            return Ok(top_k);
        }
        Err(self.text.wrong(key, &format!("1 to the number of experts, {n_experts}")))
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.text.bool_opt(key)?.unwrap_or(default))
    }

    /// A number that is finite and above 0.
    #[expect(clippy::cast_possible_truncation, reason = "kernels compute in f32")]
    pub(super) fn positive_or(&self, key: &str, default: f64) -> Result<f32> {
        let value = self.text.f64_opt(key)?.unwrap_or(default) as f32;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.text.wrong(key, "a number above 0 that an f32 can hold"))
    }

    /// Checks that `part` divides `whole`.
    pub(super) fn divides(&self, part: (&str, usize), whole: (&str, usize)) -> Result<()> {
        if whole.1.is_multiple_of(part.1) {
            return Ok(());
        }
        let expected = format!("a divisor of `{}`, {}", self.text.full_key(whole.0), whole.1);
        Err(self.text.wrong(part.0, &expected))
    }

    /// Checks that `n` heads of `dim` channels are not wider than a layer may be.
    pub(super) fn fits(&self, n: (&str, usize), dim: (&str, usize)) -> Result<()> {
        if n.1.checked_mul(dim.1).is_some_and(|width| width <= WIDTH_MAX) {
            return Ok(());
        }
        let expected = format!(
            "at most {WIDTH_MAX} in product with `{}`, {}",
            self.text.full_key(dim.0),
            dim.1
        );
        Err(self.text.wrong(n.0, &expected))
    }

    /// Which layers are of a kind of their own: by `layer_types`, else every `interval`-th is full.
    pub(super) fn is_full_attention(&self, n_layers: usize) -> Result<Vec<bool>> {
        let Some(kinds) = self.text.str_list_opt("layer_types")? else {
            let key = "full_attention_interval";
            let interval = self.text.usize_opt(key)?.unwrap_or(4);
            let interval = self.checked(key, interval, usize::MAX)?;
            return Ok((1..=n_layers).map(|nth| nth.is_multiple_of(interval)).collect());
        };
        if kinds.len() != n_layers {
            let expected = format!("one kind for each of the {n_layers} layers");
            return Err(self.text.wrong("layer_types", &expected));
        }
        let is_full = |kind: &&str| match *kind {
            "full_attention" => Ok(true),
            "linear_attention" => Ok(false),
            other => Err(self.unknown_layer(other)),
        };
        kinds.iter().map(is_full).collect()
    }

    /// Refuses layers that look at a part of the context only.
    pub(super) fn all_full_attention(&self) -> Result<()> {
        if self.flag_or("use_sliding_window", false)? {
            let advice = "attention to a window of the context is not supported";
            return Err(self.text.unsupported("use_sliding_window", advice));
        }
        let kinds = self.text.str_list_opt("layer_types")?.unwrap_or_default();
        match kinds.into_iter().find(|kind| *kind != "full_attention") {
            Some(other) => Err(self.unknown_layer(other)),
            None => Ok(()),
        }
    }

    fn unknown_layer(&self, kind: &str) -> Error {
        let advice = format!("layers of kind \"{}\" are not supported", kind.escape_debug());
        self.text.unsupported("layer_types", &advice)
    }

    /// Which layers of the qwen families have experts.
    pub(super) fn is_sparse(&self, n_layers: usize) -> Result<Vec<bool>> {
        let key = "decoder_sparse_step";
        let step = self.checked(key, self.text.usize_opt(key)?.unwrap_or(1), usize::MAX)?;
        let mut is_sparse: Vec<bool> = (1..=n_layers).map(|nth| nth.is_multiple_of(step)).collect();
        for layer in self.text.usize_list_opt("mlp_only_layers")?.unwrap_or_default() {
            // Numbers beyond the last layer mean nothing, as in transformers.
            if let Some(is_sparse) = is_sparse.get_mut(layer) {
                *is_sparse = false;
            }
        }
        Ok(is_sparse)
    }

    /// A dense layer of the published width.
    pub(super) fn dense_ffn(&self) -> Result<FfnSpec> {
        Ok(FfnSpec::Dense { inner: self.width("intermediate_size")? })
    }
}

/// What every family has.
pub(super) struct Frame {
    pub(super) hidden: usize,
    pub(super) n_layers: usize,
    vocab: usize,
    context_max: usize,
    norm_epsilon: f32,
    is_tied: bool,
    eos: Vec<TokenId>,
    quantisation: Quantisation,
}

impl Frame {
    pub(super) fn parse(config: &Config<'_>, default_epsilon: f64) -> Result<Self> {
        if config.text.str_opt("hidden_act")?.is_some_and(|name| name != "silu") {
            let advice = "only \"silu\" is supported";
            return Err(config.text.unsupported("hidden_act", advice));
        }
        Ok(Self {
            hidden: config.width("hidden_size")?,
            n_layers: config.count("num_hidden_layers", N_LAYERS_MAX)?,
            vocab: config.count("vocab_size", VOCAB_MAX)?,
            context_max: config.count("max_position_embeddings", CONTEXT_MAX)?,
            norm_epsilon: config.positive_or("rms_norm_eps", default_epsilon)?,
            is_tied: is_tied(config)?,
            eos: eos(config)?,
            quantisation: quantisation::parse(config)?,
        })
    }

    pub(super) fn into_spec(self, family: Family, layers: Vec<LayerSpec>) -> ModelSpec {
        assert_eq!(layers.len(), self.n_layers, "layers of a spec");
        ModelSpec {
            family,
            hidden: self.hidden,
            vocab: self.vocab,
            context_max: self.context_max,
            norm_epsilon: self.norm_epsilon,
            tied_embeddings: self.is_tied,
            layers,
            eos: self.eos,
            quantisation: self.quantisation,
        }
    }
}

/// Of a model with an outer config, the outer one decides, as in transformers.
fn is_tied(config: &Config<'_>) -> Result<bool> {
    let key = "tie_word_embeddings";
    let outer = config.root.bool_opt(key)?;
    Ok(outer.or(config.text.bool_opt(key)?).unwrap_or(false))
}

/// One token or a list of them, in the language model's part or at the top.
fn eos(config: &Config<'_>) -> Result<Vec<TokenId>> {
    let key = "eos_token_id";
    let section = if config.text.value(key).is_some() { &config.text } else { &config.root };
    let ids = match section.value(key) {
        None => Vec::new(),
        Some(value) if value.is_array() => section.usize_list_opt(key)?.unwrap_or_default(),
        Some(_) => vec![section.usize_at(key)?],
    };
    let as_token = |id| u32::try_from(id).map(TokenId);
    let tokens: std::result::Result<Vec<_>, _> = ids.into_iter().map(as_token).collect();
    tokens.map_err(|_| section.wrong(key, "tokens below 2^32"))
}
