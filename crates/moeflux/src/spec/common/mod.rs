//! The part of a config that all families share: sizes of the whole model, end tokens,
//! quantisation. The files below parse what several families share.
//!
//! **Invariant:** sizes are within the limits below.

pub(super) mod rope;
pub(super) mod attention;
pub(super) mod experts;

use crate::error::Result;
use crate::ids::TokenId;
use crate::spec::config::CheckedConfig;
use crate::spec::{
    AttentionSpec, Family, FfnSpec, LayerSpec, MixerSpec, ModelSpec, Quantisation, quantisation,
};

/// Upper bound on layers: forty times the largest known number.
const N_LAYERS_MAX: usize = 4096;
const VOCAB_MAX: usize = 1 << 24;
const CONTEXT_MAX: usize = 1 << 30;

/// The part of a config that all families share.
pub(super) struct CommonConfig {
    pub(super) hidden: usize,
    pub(super) n_layers: usize,
    pub(super) vocab: usize,
    pub(super) context_max: usize,
    norm_epsilon: f32,
    is_tied: bool,
    pub(super) eos: Vec<TokenId>,
    quantisation: Quantisation,
}

impl CommonConfig {
    pub(super) fn parse(config: &CheckedConfig<'_>, default_epsilon: f64) -> Result<Self> {
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

    /// Builds a spec with the same attention in every layer.
    pub(super) fn with_attention(
        self,
        family: Family,
        attention: &AttentionSpec,
        ffns: Vec<FfnSpec>,
    ) -> ModelSpec {
        let mixer = || MixerSpec::Attention(attention.clone());
        let layers = ffns.into_iter().map(|ffn| LayerSpec { mixer: mixer(), ffn }).collect();
        self.into_spec(family, layers)
    }

    pub(super) fn into_spec(self, family: Family, layers: Vec<LayerSpec>) -> ModelSpec {
        assert_eq!(layers.len(), self.n_layers, "layers of a spec");
        ModelSpec {
            family,
            hidden: self.hidden,
            streams: None,
            ngrams: Vec::new(),
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

/// Returns whether embeddings are tied. As in transformers, an outer config takes precedence.
fn is_tied(config: &CheckedConfig<'_>) -> Result<bool> {
    let key = "tie_word_embeddings";
    let outer = config.root.bool_opt(key)?;
    Ok(outer.or(config.text.bool_opt(key)?).unwrap_or(false))
}

/// Returns the end tokens: one or a list, in the language model's section or at the top.
fn eos(config: &CheckedConfig<'_>) -> Result<Vec<TokenId>> {
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
