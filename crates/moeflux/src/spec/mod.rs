//! What a model is: shapes and constants, valid by construction.
//!
//! **Invariant:** a [`ModelSpec`] that exists was checked; nothing later asks whether a number of
//! heads is zero or divides another. Knows nothing of files or tensors' names.

mod rope;
mod config;
mod quantisation;
mod frame;
mod rope_config;
mod attention_config;
mod experts_config;
mod qwen3_moe;
mod qwen2_moe;
mod mixtral;
mod gpt_oss;
mod qwen3_next;
mod qwen3_5_moe;
mod deepseek_v3;
mod glm4_moe;
mod minimax_m2;
mod hy_v3;
mod parse;
mod gguf;
#[cfg(test)]
mod tests;

pub(crate) use gguf::QUANTISATION_KEY;
pub use rope::{Pairing, RopeScaling, RopeSpec, YarnSpec};

use std::fmt;

use moeflux_kernels::Fp8Spread;

use crate::ids::TokenId;

/// A family of published checkpoints: decides names of tensors and keys of the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// `qwen3_moe`.
    Qwen3Moe,
    /// `qwen3_next`.
    Qwen3Next,
    /// `qwen3_5_moe` and `qwen3_5_moe_text`.
    Qwen35Moe,
    /// `deepseek_v3`.
    DeepseekV3,
    /// `kimi_k2`.
    KimiK2,
    /// `glm4_moe`.
    Glm4Moe,
    /// `gpt_oss`.
    GptOss,
    /// `minimax_m2`.
    MinimaxM2,
    /// `hy_v3`.
    HyV3,
    /// `glm4_moe_lite`.
    Glm4MoeLite,
    /// `glm_moe_dsa`.
    GlmMoeDsa,
    /// `deepseek_v32`.
    DeepseekV32,
    /// `kimi_k25`.
    KimiK25,
    /// `qwen3_vl_moe`.
    Qwen3VlMoe,
    /// `qwen2_moe`.
    Qwen2Moe,
    /// `mixtral`.
    Mixtral,
    /// `olmoe`.
    Olmoe,
}

impl Family {
    /// All families, with the name that their configs have in `model_type`.
    pub const ALL: [(Self, &str); 17] = [
        (Self::Qwen3Moe, "qwen3_moe"),
        (Self::Qwen3Next, "qwen3_next"),
        (Self::Qwen35Moe, "qwen3_5_moe"),
        (Self::DeepseekV3, "deepseek_v3"),
        (Self::KimiK2, "kimi_k2"),
        (Self::Glm4Moe, "glm4_moe"),
        (Self::GptOss, "gpt_oss"),
        (Self::MinimaxM2, "minimax_m2"),
        (Self::HyV3, "hy_v3"),
        (Self::Glm4MoeLite, "glm4_moe_lite"),
        (Self::GlmMoeDsa, "glm_moe_dsa"),
        (Self::DeepseekV32, "deepseek_v32"),
        (Self::KimiK25, "kimi_k25"),
        (Self::Qwen3VlMoe, "qwen3_vl_moe"),
        (Self::Qwen2Moe, "qwen2_moe"),
        (Self::Mixtral, "mixtral"),
        (Self::Olmoe, "olmoe"),
    ];

    /// The name that its configs have in `model_type`.
    ///
    /// # Panics
    ///
    /// Never: all families have one.
    #[must_use]
    pub fn name(self) -> &'static str {
        let row = Self::ALL.iter().find(|(family, _)| *family == self);
        row.expect("ALL lists every family").1
    }
}

/// A model's geometry and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Names of tensors follow from it.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Entries of the vocabulary, as rows of the embedding.
    pub vocab: usize,
    /// The longest context.
    pub context_max: usize,
    /// Why there is no longer one.
    pub context_limit: ContextLimit,
    /// Of every RMS norm along `hidden`.
    pub norm_epsilon: f32,
    /// The embedding is also the output matrix.
    pub tied_embeddings: bool,
    /// The decoder, in order.
    pub layers: Vec<LayerSpec>,
    /// Tokens that end a text, from `config.json`.
    pub eos: Vec<TokenId>,
    /// How the checkpoint says it was quantised.
    pub quantisation: Quantisation,
}

/// Why a context may not be longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextLimit {
    /// The model was made for so many positions.
    Model,
    /// Each position sees only as many others as an indexer chooses for it: up to so many
    /// positions that is all of them, and the indexer is not computed.
    Indexer {
        /// What the model was made for.
        stated: usize,
    },
}

impl ContextLimit {
    /// What follows "this model takes 2048 tokens at most" in messages.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Indexer { .. } => {
                " here, because beyond them its attention is sparse, which is not supported"
            }
        }
    }
}

impl ModelSpec {
    /// The same for contexts in which the indexer chooses every position.
    pub(super) fn limited_to(self, n_selected: usize) -> Self {
        if self.context_max <= n_selected {
            return self;
        }
        let context_limit = ContextLimit::Indexer { stated: self.context_max };
        Self { context_max: n_selected, context_limit, ..self }
    }

    /// Experts of each layer that a token uses, at most.
    #[must_use]
    pub fn top_k_max(&self) -> usize {
        self.layers.iter().map(|layer| layer.ffn.top_k()).max().unwrap_or(0)
    }

    /// Experts that every router names beforehand; 0 where routers differ in this.
    #[must_use]
    pub fn n_named(&self) -> usize {
        let mut named = self.layers.iter().filter_map(|layer| match &layer.ffn {
            FfnSpec::Moe(moe) => Some(moe.n_named()),
            FfnSpec::Dense { .. } => None,
        });
        let first = named.next().unwrap_or(0);
        if named.all(|it| it == first) { first } else { 0 }
    }
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What mixes positions.
    pub mixer: MixerSpec,
    /// What follows.
    pub ffn: FfnSpec,
}

/// What mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Grouped-query softmax attention.
    Attention(AttentionSpec),
    /// Gated DeltaNet.
    GatedDelta(GatedDeltaSpec),
    /// Multi-head latent attention.
    Mla(MlaSpec),
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Position encoding.
    pub rope: RopeSpec,
    /// `q_proj` also makes an output gate: per head `[q | gate]`.
    pub has_gate: bool,
    /// How queries and keys are normed.
    pub norm: QkNorm,
    /// Which projections have a bias.
    pub bias: AttentionBias,
    /// Only the last so many positions are seen.
    pub window: Option<usize>,
    /// Each head has one more score that takes weight but gives no value.
    pub has_sinks: bool,
}

/// How queries and keys are normed before they turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// Each head by itself, all with the same gains.
    Heads,
    /// All heads as one row.
    Row,
}

/// Which projections of an attention have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// Queries, keys and values.
    Qkv,
    /// Queries, keys, values and output.
    QkvAndOut,
}

/// Gated DeltaNet.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDeltaSpec {
    /// Query and key heads; divides `n_v_heads`.
    pub n_k_heads: usize,
    /// Value heads.
    pub n_v_heads: usize,
    /// Channels of a query or key head.
    pub k_dim: usize,
    /// Channels of a value head.
    pub v_dim: usize,
    /// Taps of the convolution.
    pub n_taps: usize,
    /// Which key head a value head has.
    pub order: HeadOrder,
}

/// In which order value heads are stored that share key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Those of one key head after each other.
    Grouped,
    /// One of each key head, again and again: GGUF files of qwen3_5_moe.
    Tiled,
}

impl HeadOrder {
    /// The key head of a value head.
    #[must_use]
    pub const fn key_head(self, head_idx: usize, n_heads: usize, n_key_heads: usize) -> usize {
        match self {
            Self::Grouped => head_idx / (n_heads / n_key_heads),
            Self::Tiled => head_idx % n_key_heads,
        }
    }
}

impl GatedDeltaSpec {
    /// Channels of the convolution: queries, keys, values.
    #[must_use]
    pub const fn conv_cols(&self) -> usize {
        2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim
    }
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaSpec {
    /// Heads.
    pub n_heads: usize,
    /// Rank of the queries' bottleneck; `None`: one direct projection.
    pub q_rank: Option<usize>,
    /// Rank of the latent.
    pub kv_rank: usize,
    /// Channels of a head without position.
    pub nope_dim: usize,
    /// Channels of a head with position.
    pub rope_dim: usize,
    /// Channels of a value head.
    pub v_dim: usize,
    /// Position encoding of the `rope_dim` channels.
    pub rope: RopeSpec,
    /// Multiplied to the scores, YaRN's part included.
    pub scale: f32,
    /// `q_a_proj`, `kv_a_proj_with_mqa` and `o_proj` have a bias.
    pub has_bias: bool,
}

/// What follows the mixer.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnSpec {
    /// One SwiGLU of this inner width.
    Dense {
        /// Inner width.
        inner: usize,
    },
    /// Routed experts.
    Moe(MoeSpec),
}

impl FfnSpec {
    /// Routed experts that a token uses.
    #[must_use]
    pub fn top_k(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            Self::Moe(moe) => moe.top_k,
        }
    }
}

/// Routed experts and their router.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Routed experts.
    pub n_experts: usize,
    /// Experts per token: all of them are computed, always.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub inner: usize,
    /// How experts are chosen.
    pub router: RouterSpec,
    /// Between the products of an expert.
    pub activation: Activation,
    /// The router and all projections of routed experts have a bias.
    pub has_bias: bool,
    /// The expert that every token uses.
    pub shared: Option<SharedExpertSpec>,
}

impl MoeSpec {
    /// Experts that a router names when it is asked beforehand: half as many again as it chooses.
    /// Of the model in the box these are 97 % of those that it then chooses.
    #[must_use]
    pub fn n_named(&self) -> usize {
        let n_allowed = match self.router {
            RouterSpec::Softmax { .. } => self.n_experts,
            RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, .. } => {
                self.n_experts / n_groups * n_groups_kept
            }
        };
        (self.top_k + self.top_k.div_ceil(2)).min(n_allowed)
    }
}

/// What stands between the products of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    SwiGlu,
    /// That of gpt_oss: with `gate` at most the limit `l` and `up` within `-l ..= l`,
    /// `gate * sigmoid(1.702 * gate) * (up + 1)`.
    Clamped {
        /// The limit.
        limit: f32,
    },
}

impl Activation {
    /// The limit, if there is one.
    #[must_use]
    pub const fn limit(self) -> Option<f32> {
        match self {
            Self::SwiGlu => None,
            Self::Clamped { limit } => Some(limit),
        }
    }
}

/// How experts are chosen and weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterSpec {
    /// Softmax over all, then the largest.
    Softmax {
        /// Whether the chosen weights are made to sum to 1.
        renormalise: bool,
    },
    /// Sigmoid with a correction for the choice, limited to groups (noaux_tc).
    SigmoidGrouped {
        /// Groups of neighbouring experts.
        n_groups: usize,
        /// Groups that take part.
        n_groups_kept: usize,
        /// Whether the chosen weights are made to sum to 1 before `factor`.
        renormalise: bool,
        /// Applied to the weights.
        factor: f32,
    },
}

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Inner width.
    pub inner: usize,
    /// Its output is multiplied by a sigmoid of its own.
    pub is_gated: bool,
}

/// How a checkpoint says it was quantised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantisation {
    /// What holds for tensors without an entry of their own; `None`: not quantised by MLX.
    pub default: Option<QuantParams>,
    /// By the tensor's canonical base name: `None` for tensors left unquantised.
    pub overrides: std::collections::BTreeMap<String, Option<QuantParams>>,
    /// What tensors are stored in that were quantised otherwise.
    pub native: Option<NativeFormat>,
}

impl Quantisation {
    /// Of a checkpoint that MLX did not quantise.
    pub(crate) fn of_native(native: NativeFormat) -> Self {
        Self { native: Some(native), ..Self::default() }
    }
}

/// A format that models are published in, besides MLX's affine codes. Which tensors are stored so
/// follows from the types that they have in their file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeFormat {
    /// FP8 e4m3, with a scale for so much of a matrix.
    Fp8(Fp8Spread),
    /// 4-bit floats under a power of two for each 32 columns.
    Mxfp4,
    /// Integers under a scale for each group of columns, as compressed-tensors packs them.
    Ints(QuantParams),
}

impl NativeFormat {
    /// In one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8(_) => "FP8",
            Self::Mxfp4 => "MXFP4",
            Self::Ints(QuantParams { bits: 4, .. }) => "INT4",
            Self::Ints(_) => "INT8",
        }
    }
}

impl fmt::Display for NativeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp8(Fp8Spread::Block { n_rows, n_cols }) => {
                write!(f, "FP8 in blocks of {n_rows} x {n_cols}")
            }
            Self::Fp8(Fp8Spread::Row) => f.write_str("FP8 with a scale for each row"),
            Self::Fp8(Fp8Spread::Matrix) => f.write_str("FP8 with a scale for each matrix"),
            Self::Mxfp4 => f.write_str("MXFP4"),
            Self::Ints(QuantParams { group, .. }) => {
                write!(f, "{} in groups of {group}", self.name())
            }
        }
    }
}

/// Bits and group of an MLX affine tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantParams {
    /// Bits of a code.
    pub bits: u8,
    /// Columns that share a scale.
    pub group: u8,
}
