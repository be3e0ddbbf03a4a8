//! The geometry of a model: shapes and constants, valid by construction.
//!
//! `families` has the config keys of each family, `common` those that several share, and `gguf`
//! translates the metadata of GGUF files into them.
//!
//! **Invariant:** every existing [`ModelSpec`] was checked, so later code need not test whether a
//! number of heads is zero or divides another. This module knows nothing of files or tensor names.

mod rope;
mod ngrams;
mod streams;
mod config;
mod quantisation;
mod common;
mod families;
mod gguf;
#[cfg(test)]
mod tests;

pub(crate) use gguf::{FREQUENCY_DIVISORS, QUANTISATION_KEY};
pub(crate) use ngrams::NgramShape;
pub(crate) use rope::plain_frequency;
pub use rope::{Llama3Spec, Pairing, RopeScaling, RopeSpec, YarnSpec};
pub use streams::{GateFunction, NgramSpec, StreamSpec};

use std::fmt;

use moeflux_kernels::Fp8Spread;

use crate::ids::TokenId;

/// A family of published checkpoints. It determines tensor names and config keys.
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
    /// `qwen2`.
    Qwen2,
    /// `qwen3`.
    Qwen3,
    /// `qwen3_5` and `qwen3_5_text`.
    Qwen35,
    /// `llama`.
    Llama,
    /// `qwen4_exp` and `qwen4_exp_text`.
    Qwen4Exp,
}

impl Family {
    /// All families, with their `model_type` in configs.
    pub const ALL: [(Self, &str); 22] = [
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
        (Self::Qwen2, "qwen2"),
        (Self::Qwen3, "qwen3"),
        (Self::Qwen35, "qwen3_5"),
        (Self::Llama, "llama"),
        (Self::Qwen4Exp, "qwen4_exp"),
    ];

    /// Returns the `model_type` in its configs.
    ///
    /// # Panics
    ///
    /// Never: `ALL` lists every family.
    #[must_use]
    pub fn name(self) -> &'static str {
        let row = Self::ALL.iter().find(|(family, _)| *family == self);
        row.expect("ALL lists every family").1
    }
}

/// A model's geometry and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Family, which determines tensor names.
    pub family: Family,
    /// Width of a residual stream.
    pub hidden: usize,
    /// The residual streams, if there are several.
    pub streams: Option<StreamSpec>,
    /// The layers that add rows of n-grams.
    pub ngrams: Vec<NgramSpec>,
    /// Entries of the vocabulary, which are the rows of the embedding.
    pub vocab: usize,
    /// Maximum context.
    pub context_max: usize,
    /// Epsilon of every RMS norm over `hidden`.
    pub norm_epsilon: f32,
    /// Whether the embedding is also the output matrix.
    pub tied_embeddings: bool,
    /// Decoder layers in order.
    pub layers: Vec<LayerSpec>,
    /// End-of-text tokens, from `config.json`.
    pub eos: Vec<TokenId>,
    /// Quantisation that the checkpoint declares.
    pub quantisation: Quantisation,
}

impl ModelSpec {
    /// Returns the same model with the feed-forward of each layer as its only expert, which may be
    /// streamed; `None` unless all layers are dense.
    pub(crate) fn with_streamed_layers(&self) -> Option<Self> {
        let layers = self.layers.iter().map(|layer| {
            let FfnSpec::Dense { inner, has_bias } = layer.ffn else { return None };
            let ffn = FfnSpec::Moe(MoeSpec {
                n_experts: 1,
                top_k: 1,
                inner,
                router: RouterSpec::Only,
                activation: Activation::SwiGlu,
                has_bias,
                shared: None,
            });
            Some(LayerSpec { mixer: layer.mixer.clone(), ffn })
        });
        Some(Self { layers: layers.collect::<Option<_>>()?, ..self.clone() })
    }

    /// Returns whether this is a dense model whose layers may be streamed.
    pub(crate) fn streams_layers(&self) -> bool {
        let is_only = |moe: &MoeSpec| moe.router == RouterSpec::Only;
        self.layers.iter().any(|it| matches!(&it.ffn, FfnSpec::Moe(moe) if is_only(moe)))
    }

    /// Returns the maximum number of routed experts per token in a layer.
    #[must_use]
    pub fn top_k_max(&self) -> usize {
        self.layers.iter().map(|layer| layer.ffn.top_k()).max().unwrap_or(0)
    }

    /// Returns the number of experts that each router predicts; 0 if routers differ in it.
    #[must_use]
    pub fn n_predicted(&self) -> usize {
        let mut counts = self.layers.iter().filter_map(|layer| match &layer.ffn {
            FfnSpec::Moe(moe) => Some(moe.n_predicted()),
            FfnSpec::Dense { .. } => None,
        });
        let first = counts.next().unwrap_or(0);
        if counts.all(|it| it == first) { first } else { 0 }
    }
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Operator that mixes positions.
    pub mixer: MixerSpec,
    /// Feed-forward part.
    pub ffn: FfnSpec,
}

/// The operator that mixes positions.
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
    /// Key and value heads; their number divides `n_heads`.
    pub n_kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Position encoding.
    pub rope: RopeSpec,
    /// Whether `q_proj` also produces an output gate: per head `[q | gate]`.
    pub has_gate: bool,
    /// Normalisation of queries and keys.
    pub norm: QkNorm,
    /// Projections that have a bias.
    pub bias: AttentionBias,
    /// Sliding window: only this number of last positions is visible.
    pub window: Option<usize>,
    /// Whether each head has a sink: an extra score that takes weight but has no value.
    pub has_sinks: bool,
    /// The indexer that chooses the positions of each row, if the rows of a long context do not
    /// attend to all.
    pub indexer: Option<BlockIndexerSpec>,
}

/// An indexer that scores blocks of positions by the averages of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIndexerSpec {
    /// Heads of its queries, which share one key.
    pub n_heads: usize,
    /// Channels per head. The first of them rotate like those of the attention.
    pub head_dim: usize,
    /// Blocks that a row attends to, besides the positions after the last whole block.
    pub n_blocks: usize,
    /// Positions of a block.
    pub block: usize,
}

/// The normalisation of queries and keys before rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No normalisation.
    None,
    /// Per head, with the same gains for all.
    Heads,
    /// All heads as one row.
    Row,
}

/// The projections of an attention that have a bias.
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
    /// Query and key heads; their number divides `n_v_heads`.
    pub n_k_heads: usize,
    /// Value heads.
    pub n_v_heads: usize,
    /// Channels per query or key head.
    pub k_dim: usize,
    /// Channels per value head.
    pub v_dim: usize,
    /// Taps of the convolution.
    pub n_taps: usize,
    /// Assignment of value heads to key heads.
    pub order: HeadOrder,
    /// Function of the gate behind the norm.
    pub gate: GateFunction,
}

/// The order of stored value heads, which share key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value heads of the same key head are adjacent.
    Grouped,
    /// Value heads cycle through the key heads: GGUF files of qwen3_5_moe.
    Tiled,
}

impl HeadOrder {
    /// Returns the index of the key head of a value head.
    #[must_use]
    pub const fn key_head(self, head_idx: usize, n_heads: usize, n_key_heads: usize) -> usize {
        match self {
            Self::Grouped => head_idx / (n_heads / n_key_heads),
            Self::Tiled => head_idx % n_key_heads,
        }
    }
}

impl GatedDeltaSpec {
    /// Returns the channels of the convolution: queries, keys and values.
    #[must_use]
    pub const fn conv_cols(&self) -> usize {
        2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim
    }
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaSpec {
    /// Number of heads.
    pub n_heads: usize,
    /// Rank of the query bottleneck; `None` for a single direct projection.
    pub q_rank: Option<usize>,
    /// Rank of the latent.
    pub kv_rank: usize,
    /// Channels per head without position.
    pub nope_dim: usize,
    /// Channels per head with position.
    pub rope_dim: usize,
    /// Channels per value head.
    pub v_dim: usize,
    /// Position encoding of the `rope_dim` channels.
    pub rope: RopeSpec,
    /// Factor of the scores, YaRN's part included.
    pub scale: f32,
    /// Whether `q_a_proj`, `kv_a_proj_with_mqa` and `o_proj` have a bias.
    pub has_bias: bool,
    /// The choice of the positions that a row attends to; all if `None`.
    pub choice: Option<PositionChoice>,
}

/// The origin of the positions that the rows of a layer attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionChoice {
    /// An indexer of the layer chooses them.
    Own(IndexerSpec),
    /// They are those of the last layer below that has an indexer.
    Shared {
        /// Positions that a row attends to.
        n_chosen: usize,
    },
}

impl PositionChoice {
    /// Returns the number of positions that a row attends to, if it sees as many.
    #[must_use]
    pub const fn n_chosen(self) -> usize {
        match self {
            Self::Own(indexer) => indexer.n_chosen,
            Self::Shared { n_chosen } => n_chosen,
        }
    }
}

/// An indexer, which scores positions by keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexerSpec {
    /// Heads of its queries, which share one key.
    pub n_heads: usize,
    /// Channels per head. The first of them rotate like those of the attention, except for the
    /// pairing.
    pub head_dim: usize,
    /// Rank of the query bottleneck, which it shares with the attention.
    pub q_rank: usize,
    /// Channels that rotate together.
    pub pairing: Pairing,
    /// Positions that a row attends to, if it sees as many.
    pub n_chosen: usize,
}

/// The feed-forward part of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnSpec {
    /// One SwiGLU.
    Dense {
        /// Inner width.
        inner: usize,
        /// Whether its three projections have a bias.
        has_bias: bool,
    },
    /// Routed experts.
    Moe(MoeSpec),
}

impl FfnSpec {
    /// Returns the number of routed experts per token.
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
    /// Number of routed experts.
    pub n_experts: usize,
    /// Experts per token. All of them are always computed.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub inner: usize,
    /// Selection of experts.
    pub router: RouterSpec,
    /// Activation between the products of an expert.
    pub activation: Activation,
    /// Whether the router and all projections of routed experts have a bias.
    pub has_bias: bool,
    /// Expert that every token uses.
    pub shared: Option<SharedExpertSpec>,
}

impl MoeSpec {
    /// Returns the number of experts that a router predicts ahead of time: one and a half times the
    /// number that it selects. For the bundled demo model these include 97 % of the experts then
    /// selected.
    #[must_use]
    pub fn n_predicted(&self) -> usize {
        let n_allowed = match self.router {
            // What is certain needs no prediction.
            RouterSpec::Only => 0,
            RouterSpec::Softmax { .. } => self.n_experts,
            RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, .. } => {
                self.n_experts / n_groups * n_groups_kept
            }
        };
        (self.top_k + self.top_k.div_ceil(2)).min(n_allowed)
    }
}

/// The activation between the products of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    SwiGlu,
    /// The activation of gpt_oss: with `gate` at most the limit `l` and `up` within `-l ..= l`,
    /// `gate * sigmoid(1.702 * gate) * (up + 1)`.
    Clamped {
        /// The limit.
        limit: f32,
    },
}

impl Activation {
    /// Returns the limit, if there is one.
    #[must_use]
    pub const fn limit(self) -> Option<f32> {
        match self {
            Self::SwiGlu => None,
            Self::Clamped { limit } => Some(limit),
        }
    }
}

/// The selection and weighting of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterSpec {
    /// There is no router and one expert: the feed-forward of a dense layer that may be streamed.
    Only,
    /// Softmax over all experts, then the largest are selected.
    Softmax {
        /// Whether the selected weights are normalised to sum to 1.
        renormalise: bool,
    },
    /// Sigmoid with a correction bias for the selection, limited to groups (noaux_tc).
    SigmoidGrouped {
        /// Number of groups of adjacent experts.
        n_groups: usize,
        /// Number of groups from which experts are selected.
        n_groups_kept: usize,
        /// Whether the selected weights are normalised to sum to 1 before `factor`.
        renormalise: bool,
        /// Factor of the weights.
        factor: f32,
    },
}

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Inner width.
    pub inner: usize,
    /// Whether its output is multiplied by a separate sigmoid gate.
    pub is_gated: bool,
}

/// The quantisation that a checkpoint declares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantisation {
    /// Parameters that a checkpoint states for all tensors; `None` if MLX did not quantise them.
    /// Those of a stored tensor without an override follow from its shapes.
    pub default: Option<QuantParams>,
    /// Overrides by the tensor's canonical base name; `None` for tensors left unquantised.
    pub overrides: std::collections::BTreeMap<String, Option<QuantParams>>,
    /// Format of tensors that were quantised by other means.
    pub native: Option<NativeFormat>,
}

impl Quantisation {
    /// Returns whether MLX may have quantised tensors that have no override.
    #[must_use]
    pub(crate) fn is_of_mlx(&self) -> bool {
        self.default.is_some() || self.native == Some(NativeFormat::Mxfp4)
    }

    /// Describes a checkpoint that MLX did not quantise.
    pub(crate) fn of_native(native: NativeFormat) -> Self {
        Self { native: Some(native), ..Self::default() }
    }
}

/// A format of published models other than MLX affine quantisation. The tensors that have it are
/// recognised by their types in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeFormat {
    /// FP8 e4m3, with one scale for each unit of [`Fp8Spread`].
    Fp8(Fp8Spread),
    /// 4-bit floats with a power-of-two scale for each 32 columns.
    Mxfp4,
    /// Integers with a scale for each group of columns, as compressed-tensors packs them.
    Ints(QuantParams),
}

impl NativeFormat {
    /// Returns the name in one word.
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

/// Bit width and group size of an MLX affine tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantParams {
    /// Bits per weight.
    pub bits: u8,
    /// Columns that share a scale.
    pub group: u8,
}
