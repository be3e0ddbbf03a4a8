//! The vocabulary of computation: operations as plain data over named buffers.
//!
//! A [`Plan`] is a list of [`Op`]s built once per model. It knows neither how many rows a step
//! has nor whose they are: that is the [`Batch`], given anew with every step.
//! **Invariant:** an op's fields are static facts of the model; nothing here computes.

mod batch;
mod shape;
mod plan;

pub use batch::{Batch, Routes, Row, RowKind, Segment};
pub use plan::{Plan, PlanId};
pub use shape::{
    BufferSpec, DeltaShape, Heads, KvKind, LayerState, N_OUTPUTS_MAX, RowSet, StateSpec, Workspace,
};

use std::ops::Range;

use crate::ids::{LayerIdx, MatrixId, VectorId};
use crate::spec::{HeadOrder, Pairing};

/// One step of a plan. A backend is an interpreter of these.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// See [`Embed`].
    Embed(Embed),
    /// See [`SelectRows`].
    SelectRows(SelectRows),
    /// See [`RmsNorm`].
    RmsNorm(RmsNorm),
    /// See [`L2Norm`].
    L2Norm(L2Norm),
    /// See [`MatMul`].
    MatMul(MatMul),
    /// See [`HeadMatMul`].
    HeadMatMul(HeadMatMul),
    /// See [`Rope`].
    Rope(Rope),
    /// See [`Attention`].
    Attention(Attention),
    /// See [`MlaAttention`].
    MlaAttention(MlaAttention),
    /// See [`CausalConv`].
    CausalConv(CausalConv),
    /// See [`DeltaGates`].
    DeltaGates(DeltaGates),
    /// See [`GatedDelta`].
    GatedDelta(GatedDelta),
    /// See [`SwiGlu`].
    SwiGlu(SwiGlu),
    /// See [`Add`].
    Add(Add),
    /// See [`Route`].
    Route(Route),
    /// See [`ExpertFfn`].
    ExpertFfn(ExpertFfn),
    /// See [`ExpertUp`].
    ExpertUp(ExpertUp),
    /// See [`ExpertDown`].
    ExpertDown(ExpertDown),
    /// See [`Combine`].
    Combine(Combine),
    /// See [`Best`].
    Best(Best),
}

/// `out[row] = table[token of row]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// `[vocab, hidden]`.
    pub table: MatrixId,
    /// `[hidden]` per row.
    pub out: Heads,
}

/// Copies the rows whose logits are wanted, in the order of [`Batch::outputs`], to the first rows
/// of `out`. The ops after it run over output rows only: see [`RowSet`].
#[derive(Clone, Debug, PartialEq)]
pub struct SelectRows {
    /// Source, indexed by row.
    pub x: Heads,
    /// Target, indexed by output.
    pub out: Heads,
}

/// `out = x / sqrt(mean(x^2) + epsilon) * gain`, per head; then `* silu(gate)` where there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Input.
    pub x: Heads,
    /// `[head_dim]`, the same for every head.
    pub gain: VectorId,
    /// Multiplied as `silu(gate)` after the norm (gated DeltaNet); same heads as `x`.
    pub gate: Option<Heads>,
    /// Output; may be `x`.
    pub out: Heads,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// `x = x / sqrt(sum(x^2) + epsilon) * factor`, per head, in place.
#[derive(Clone, Debug, PartialEq)]
pub struct L2Norm {
    /// Input and output.
    pub x: Heads,
    /// Added to the sum of squares.
    pub epsilon: f32,
    /// Applied after the norm.
    pub factor: f32,
}

/// `out = weight . x + bias`, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// `[out, in]`.
    pub weight: MatrixId,
    /// `[out]`.
    pub bias: Option<VectorId>,
    /// One head of `in` columns.
    pub x: Heads,
    /// One head of `out` columns; another buffer than `x`.
    pub out: Heads,
}

/// Which way a weight is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// `out[i] = sum over columns of weight[i][c] * x[c]`: a row makes an output.
    RowsToOut,
    /// `out[c] = sum over rows of weight[i][c] * x[i]`: a row takes an input.
    RowsFromIn,
}

/// A product of its own for every head: head `h` uses the weight's rows
/// `first_row + h * row_stride ..` `+ n_rows`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadMatMul {
    /// All heads' matrices, one after another.
    pub weight: MatrixId,
    /// First row of head 0.
    pub first_row: usize,
    /// Rows from one head's matrix to the next.
    pub row_stride: usize,
    /// Rows of one head's matrix.
    pub n_rows: usize,
    /// Which way the matrix is applied.
    pub orientation: Orientation,
    /// Input heads.
    pub x: Heads,
    /// Output heads, as many; another buffer than `x`.
    pub out: Heads,
}

/// Turns channel pairs by `position * frequency`, in place:
/// `(a, b) -> (a cos - b sin, a sin + b cos)`, cos and sin multiplied by `amplitude`.
/// For a partial rope the heads' view covers only the channels that turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Input and output.
    pub x: Heads,
    /// `[head_dim / 2]` radians per position.
    pub frequencies: VectorId,
    /// Which channels turn together.
    pub pairing: Pairing,
    /// YaRN's attention factor; 1 elsewhere.
    pub amplitude: f32,
}

/// Appends `k` and `v` to the layer's cache, then attends causally:
/// `out = softmax(scale * q . k) v`, then `* sigmoid(gate)` where there is one.
/// Query head `h` uses key head `h / (q heads / k heads)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Whose cache.
    pub layer: LayerIdx,
    /// Queries.
    pub q: Heads,
    /// Keys of these rows.
    pub k: Heads,
    /// Values of these rows, as many heads as `k`.
    pub v: Heads,
    /// Output gate, before its sigmoid; same heads as `out`.
    pub gate: Option<Heads>,
    /// As many heads as `q`, with the dimension of `v`.
    pub out: Heads,
    /// Multiplied to the scores.
    pub scale: f32,
    /// Only the last so many positions are seen.
    pub window: Option<usize>,
    /// `[q heads]`: one more score per head that takes weight but gives no value.
    pub sinks: Option<VectorId>,
}

/// Multi-head latent attention in absorbed form: appends `latent` and `k_rope` (one head each) to
/// the layer's cache, then `out[h] = softmax(scale * (q_latent[h] . latent + q_rope[h] . k_rope))
/// latent`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaAttention {
    /// Whose cache.
    pub layer: LayerIdx,
    /// Queries in latent space.
    pub q_latent: Heads,
    /// Rotated part of the queries.
    pub q_rope: Heads,
    /// Latent of these rows, normed; one head.
    pub latent: Heads,
    /// Rotated keys of these rows; one head.
    pub k_rope: Heads,
    /// In latent space, as many heads as `q_latent`.
    pub out: Heads,
    /// Multiplied to the scores.
    pub scale: f32,
}

/// Causal depthwise convolution over time, then SiLU; the layer's state holds the last
/// `n_taps - 1` inputs, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct CausalConv {
    /// Whose state.
    pub layer: LayerIdx,
    /// One head of channels.
    pub x: Heads,
    /// `[channels, n_taps]`; the last tap meets the newest input.
    pub weight: VectorId,
    /// Taps per channel.
    pub n_taps: usize,
    /// One head of channels; another buffer than `x`.
    pub out: Heads,
}

/// `decay = exp(-exp(a_log) * softplus(a + dt_bias))`, `beta = sigmoid(b)`, per value head.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaGates {
    /// One head of one value per value head.
    pub a: Heads,
    /// Like `a`.
    pub b: Heads,
    /// `[value heads]`.
    pub a_log: VectorId,
    /// `[value heads]`.
    pub dt_bias: VectorId,
    /// Like `a`; may be `a`.
    pub decay: Heads,
    /// Like `b`; may be `b`.
    pub beta: Heads,
}

/// The gated delta rule, token by token. Per value head, with the key head that `order` says and
/// state `S[value][key]`:
/// `S *= decay; delta = (v - S k) * beta; S += delta k^T; out = S q`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Whose state.
    pub layer: LayerIdx,
    /// Queries, normed and scaled.
    pub q: Heads,
    /// Keys, normed.
    pub k: Heads,
    /// Values.
    pub v: Heads,
    /// One head of one value per value head.
    pub decay: Heads,
    /// Like `decay`.
    pub beta: Heads,
    /// Like `v`.
    pub out: Heads,
    /// Which key head a value head has.
    pub order: HeadOrder,
}

/// `out = silu(gate) * up`. With a limit `l` as in gpt_oss: `gate` is cut to at most `l`, `up` to
/// `-l ..= l`, and `out = gate * sigmoid(1.702 * gate) * (up + 1)`.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiGlu {
    /// Input to SiLU.
    pub gate: Heads,
    /// Factor.
    pub up: Heads,
    /// Output; may be `gate` or `up`.
    pub out: Heads,
    /// Clamp of gpt_oss.
    pub limit: Option<f32>,
}

/// `out = x + y`.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// First term.
    pub x: Heads,
    /// Second term.
    pub y: Heads,
    /// Sum; may be `x` or `y`.
    pub out: Heads,
}

/// How a router turns logits into choices and weights. Ties: the lower index wins.
#[derive(Clone, Debug, PartialEq)]
pub enum RouterKind {
    /// Softmax over all experts, then the `top_k` largest; `renormalise` divides their weights by
    /// their sum.
    Softmax {
        /// Whether the chosen weights are made to sum to 1.
        renormalise: bool,
    },
    /// DeepSeek's noaux_tc: `s = sigmoid(logits)`; choice by `s + correction` among the
    /// `n_groups_kept` groups whose two best choices have the largest sum (others count as minus
    /// infinity); weights are `s` of the chosen.
    SigmoidGrouped {
        /// `[n_experts]`, used for the choice only.
        correction: VectorId,
        /// Groups of neighbouring experts.
        n_groups: usize,
        /// Groups that take part.
        n_groups_kept: usize,
        /// Whether weights are divided by (their sum + 1e-20).
        renormalise: bool,
        /// Applied last.
        factor: f32,
    },
}

/// Chooses `top_k` experts for each row: the backend's [`Routes`] of that purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// One head of `n_experts` columns.
    pub logits: Heads,
    /// How choices and weights are made.
    pub kind: RouterKind,
    /// Experts per row.
    pub top_k: usize,
    /// What the choice is for.
    pub purpose: Purpose,
}

/// What experts are chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be computed.
    Use,
    /// To be read before they are asked for.
    Guess,
}

/// `down . swiglu(gate . x, up . x)` of each arrived expert, for the rows that chose it, with a
/// bias added behind each product where there are some. In a plan that is submitted as a whole: of
/// each expert that a row chose, from what the device holds.
/// What comes out is for [`Combine`]: added up in `sum` as far as the experts came in the order of
/// the sum, else kept by the backend for their turn.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertFfn {
    /// Whose experts.
    pub layer: LayerIdx,
    /// One head of `hidden` columns.
    pub x: Heads,
    /// One head of `hidden` columns.
    pub sum: Heads,
    /// Clamp of gpt_oss: see [`SwiGlu`].
    pub limit: Option<f32>,
    /// Added behind each product.
    pub biases: Option<ExpertBiases>,
}

/// The first half of [`ExpertFfn`] where several machines have some rows each of every expert:
/// `swiglu(gate . x, up . x)` of the own rows of gate and up. What comes out is kept by the
/// backend, use by use, until the values of all machines are together: see
/// [`crate::backend::Backend::begin_wave`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUp {
    /// One head of `hidden` columns.
    pub x: Heads,
    /// Rows of gate and up of a whole expert.
    pub n_inner: usize,
    /// The own ones.
    pub rows: Range<usize>,
    /// Clamp of gpt_oss: see [`SwiGlu`].
    pub limit: Option<f32>,
    /// Of whole experts.
    pub biases: Option<ExpertBiases>,
}

/// The second half: `down . inner` of the own rows of down, whose outputs are columns of `sum`, and
/// which are added up there in the order of the sum.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertDown {
    /// One head: the own columns.
    pub sum: Heads,
    /// Rows of down of a whole expert.
    pub n_hidden: usize,
    /// The own ones.
    pub rows: Range<usize>,
    /// Of whole experts.
    pub biases: Option<ExpertBiases>,
}

/// What is added behind the products of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertBiases {
    /// `[n_experts, inner]`.
    pub gate: VectorId,
    /// `[n_experts, inner]`.
    pub up: VectorId,
    /// `[n_experts, hidden]`.
    pub down: VectorId,
}

impl ExpertBiases {
    /// All of them, in the order of the products.
    #[must_use]
    pub const fn all(&self) -> [VectorId; 3] {
        [self.gate, self.up, self.down]
    }
}

/// `out = residual + (sum of weight * partial in ascending expert index + shared)`, where `shared`
/// is multiplied by `sigmoid(shared_gate)` if there is one. All sums in that order.
#[derive(Clone, Debug, PartialEq)]
pub struct Combine {
    /// As [`ExpertFfn`] left it.
    pub sum: Heads,
    /// Output of the shared expert.
    pub shared: Option<Heads>,
    /// One column.
    pub shared_gate: Option<Heads>,
    /// Added last.
    pub residual: Heads,
    /// Output; may be `residual`.
    pub out: Heads,
}

/// The largest values of a row, largest first, then the columns that they stand in, as numbers. Of
/// equals, 0 and -0 among them, the one further left comes first. What is not a number is larger
/// than all: who looks at the first sees that something broke.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// One head of fewer than 2^24 columns, which a number names exactly.
    pub x: Heads,
    /// One head: so many values, at most `N_BEST_MAX` and at most the columns of `x`, and as many
    /// columns; another buffer than `x`.
    pub out: Heads,
}

/// Values that [`Best`] finds at most.
pub(crate) const N_BEST_MAX: usize = 64;

impl Op {
    /// Name for plans, profiles and test failures.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::SelectRows(_) => "select_rows",
            Self::RmsNorm(_) => "rms_norm",
            Self::L2Norm(_) => "l2_norm",
            Self::MatMul(_) => "matmul",
            Self::HeadMatMul(_) => "head_matmul",
            Self::Rope(_) => "rope",
            Self::Attention(_) => "attention",
            Self::MlaAttention(_) => "mla_attention",
            Self::CausalConv(_) => "causal_conv",
            Self::DeltaGates(_) => "delta_gates",
            Self::GatedDelta(_) => "gated_delta",
            Self::SwiGlu(_) => "swiglu",
            Self::Add(_) => "add",
            Self::Route(_) => "route",
            Self::ExpertFfn(_) => "expert_ffn",
            Self::ExpertUp(_) => "expert_up",
            Self::ExpertDown(_) => "expert_down",
            Self::Combine(_) => "combine",
            Self::Best(_) => "best",
        }
    }

    /// The resident matrices that the op uses.
    #[must_use]
    pub fn matrices(&self) -> Vec<MatrixId> {
        match self {
            Self::Embed(op) => vec![op.table],
            Self::MatMul(op) => vec![op.weight],
            Self::HeadMatMul(op) => vec![op.weight],
            _ => Vec::new(),
        }
    }

    /// The vectors that the op uses.
    #[must_use]
    pub fn vectors(&self) -> Vec<VectorId> {
        match self {
            Self::RmsNorm(op) => vec![op.gain],
            Self::MatMul(op) => op.bias.into_iter().collect(),
            Self::Rope(op) => vec![op.frequencies],
            Self::Attention(op) => op.sinks.into_iter().collect(),
            Self::CausalConv(op) => vec![op.weight],
            Self::DeltaGates(op) => vec![op.a_log, op.dt_bias],
            Self::ExpertFfn(ExpertFfn { biases, .. })
            | Self::ExpertUp(ExpertUp { biases, .. })
            | Self::ExpertDown(ExpertDown { biases, .. }) => {
                biases.iter().flat_map(ExpertBiases::all).collect()
            }
            Self::Route(op) => match op.kind {
                RouterKind::Softmax { .. } => Vec::new(),
                RouterKind::SigmoidGrouped { correction, .. } => vec![correction],
            },
            _ => Vec::new(),
        }
    }

    /// Every view of a buffer that the op reads or writes, outputs last.
    #[must_use]
    pub fn heads(&self) -> Vec<Heads> {
        let with = |required: &[Heads], optional: &[Option<Heads>]| {
            optional.iter().flatten().chain(required).copied().collect()
        };
        match self {
            Self::Embed(op) => vec![op.out],
            Self::SelectRows(op) => vec![op.x, op.out],
            Self::RmsNorm(op) => with(&[op.x, op.out], &[op.gate]),
            Self::L2Norm(op) => vec![op.x],
            Self::MatMul(op) => vec![op.x, op.out],
            Self::HeadMatMul(op) => vec![op.x, op.out],
            Self::Rope(op) => vec![op.x],
            Self::Attention(op) => with(&[op.q, op.k, op.v, op.out], &[op.gate]),
            Self::MlaAttention(op) => {
                vec![op.q_latent, op.q_rope, op.latent, op.k_rope, op.out]
            }
            Self::CausalConv(op) => vec![op.x, op.out],
            Self::DeltaGates(op) => vec![op.a, op.b, op.decay, op.beta],
            Self::GatedDelta(op) => vec![op.q, op.k, op.v, op.decay, op.beta, op.out],
            Self::SwiGlu(op) => vec![op.gate, op.up, op.out],
            Self::Add(op) => vec![op.x, op.y, op.out],
            Self::Route(op) => vec![op.logits],
            Self::ExpertFfn(op) => vec![op.x, op.sum],
            Self::ExpertUp(op) => vec![op.x],
            Self::ExpertDown(op) => vec![op.sum],
            Self::Combine(op) => with(&[op.sum, op.residual, op.out], &[op.shared, op.shared_gate]),
            Self::Best(op) => vec![op.x, op.out],
        }
    }
}
