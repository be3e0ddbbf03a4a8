//! The vocabulary of computation: operations as plain data over named buffers.
//!
//! A [`Plan`] is a list of [`Op`]s built once per model. It is independent of the number of rows in
//! a step and of their sessions: the [`Batch`] of each step gives those.
//! **Invariant:** an op's fields are static facts of the model; nothing here computes.

mod batch;
mod shape;
mod attention;
mod norms;
mod conv;
mod streams;
mod plan;

pub use attention::{Attention, ChosenPositions, MlaAttention, PoolKeys, SelectPositions};
pub use batch::{Batch, Routes, Row, RowKind, Segment};
pub use conv::{CausalConv, KeptInputs};
pub use norms::{Gain, NormGate, RmsNorm};
pub use plan::{Plan, PlanId};
pub use shape::{
    BufferSpec, DeltaShape, Heads, KvKind, LayerState, N_OUTPUTS_MAX, RowSet, StateSpec, Workspace,
};
pub use streams::{Activate, HeadDot, StreamBase, StreamRead, StreamWeights, StreamWrite};

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
    /// See [`LayerNorm`].
    LayerNorm(LayerNorm),
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
    /// See [`PoolKeys`].
    PoolKeys(PoolKeys),
    /// See [`SelectPositions`].
    SelectPositions(SelectPositions),
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
    /// See [`Activate`].
    Activate(Activate),
    /// See [`HeadDot`].
    HeadDot(HeadDot),
    /// See [`StreamRead`].
    StreamRead(StreamRead),
    /// See [`StreamWrite`].
    StreamWrite(StreamWrite),
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
    /// See [`TopK`].
    TopK(TopK),
}

/// `out[row] = table[token of row]`, in every head.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// `[vocab, hidden]`.
    pub table: MatrixId,
    /// `[hidden]` per row and head: a head for each residual stream.
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

/// `out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * gain + bias`, per head.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Input.
    pub x: Heads,
    /// `[head_dim]`, the same for every head.
    pub gain: VectorId,
    /// `[head_dim]`, the same for every head.
    pub bias: VectorId,
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
    /// One head of `out` columns; a different buffer from `x`.
    pub out: Heads,
}

/// How a weight matrix is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// `out[i] = sum over columns of weight[i][c] * x[c]`: each row produces an output.
    RowsToOut,
    /// `out[c] = sum over rows of weight[i][c] * x[i]`: each row takes an input.
    RowsFromIn,
}

/// A separate product for each head: head `h` uses the weight's rows
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
    /// How the matrix is applied.
    pub orientation: Orientation,
    /// Input heads.
    pub x: Heads,
    /// As many output heads; a different buffer from `x`.
    pub out: Heads,
}

/// Rotates channel pairs by `position * frequency`, in place:
/// `(a, b) -> (a cos - b sin, a sin + b cos)`, cos and sin multiplied by `amplitude`.
/// For a partial rope the heads' view covers only the rotated channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Input and output.
    pub x: Heads,
    /// `[head_dim / 2]` radians per position.
    pub frequencies: VectorId,
    /// Which channels form a pair.
    pub pairing: Pairing,
    /// YaRN's attention factor; 1 elsewhere.
    pub amplitude: f32,
    /// Positions of a block. A row is rotated as at the first position of its block; with 1, at its
    /// own position.
    pub block: usize,
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

/// The gated delta rule, token by token. Per value head, with the key head given by `order` and
/// state `S[value][key]`:
/// `S *= decay; delta = (v - S k) * beta; S += delta k^T; out = S q`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Layer of the state.
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
    /// Mapping from value heads to key heads.
    pub order: HeadOrder,
}

/// `out = silu(gate) * up`. With a limit `l` as in gpt_oss: `gate` is clamped to at most `l`, `up`
/// to `-l ..= l`, and `out = gate * sigmoid(1.702 * gate) * (up + 1)`.
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

/// How a router derives choices and weights from logits. On ties the lower index wins.
#[derive(Clone, Debug, PartialEq)]
pub enum RouterKind {
    /// Softmax over all experts, then the `top_k` largest; `renormalise` divides their weights by
    /// their sum.
    Softmax {
        /// Whether the chosen weights are made to sum to 1.
        renormalise: bool,
    },
    /// DeepSeek's noaux_tc: `s = sigmoid(logits)`. Experts are chosen by `s + correction` among the
    /// `n_groups_kept` groups whose two best choices have the largest sum (experts of other groups
    /// count as minus infinity). Weights are `s` of the chosen.
    SigmoidGrouped {
        /// `[n_experts]`, used for the choice only.
        correction: VectorId,
        /// Groups of neighbouring experts.
        n_groups: usize,
        /// Groups that remain eligible.
        n_groups_kept: usize,
        /// Whether weights are divided by (their sum + 1e-20).
        renormalise: bool,
        /// Applied last.
        factor: f32,
    },
}

/// Chooses `top_k` experts for each row. The result is the backend's [`Routes`] of that purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// One head of `n_experts` columns.
    pub logits: Heads,
    /// How choices and weights are derived.
    pub kind: RouterKind,
    /// Experts per row.
    pub top_k: usize,
    /// Purpose of the choice.
    pub purpose: Purpose,
}

/// Purpose of a choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The experts are computed.
    Compute,
    /// The experts are prefetched.
    Prefetch,
}

/// `down . swiglu(gate . x, up . x)` of each arrived expert, for the rows that chose it, with a
/// bias added after each product if there are biases. In a plan submitted whole, it covers each
/// expert that a row chose, from device memory. The outputs are input to [`Combine`]: they are
/// summed in `sum` as long as experts arrive in the order of the sum; otherwise the backend keeps
/// them until they are due.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertFfn {
    /// Layer of the experts.
    pub layer: LayerIdx,
    /// One head of `hidden` columns.
    pub x: Heads,
    /// One head of `hidden` columns.
    pub sum: Heads,
    /// Clamp of gpt_oss: see [`SwiGlu`].
    pub limit: Option<f32>,
    /// Added after each product.
    pub biases: Option<ExpertBiases>,
}

/// The first half of [`ExpertFfn`] where the rows of every expert are sharded among machines:
/// `swiglu(gate . x, up . x)` of this machine's rows of gate and up. The backend keeps the outputs,
/// use by use, until those of all machines are complete: see
/// [`crate::backend::ExpertSharding::begin_chunk`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUp {
    /// One head of `hidden` columns.
    pub x: Heads,
    /// Rows of gate and up of a whole expert.
    pub n_inner: usize,
    /// Rows of this machine.
    pub rows: Range<usize>,
    /// Clamp of gpt_oss: see [`SwiGlu`].
    pub limit: Option<f32>,
    /// Biases of whole experts.
    pub biases: Option<ExpertBiases>,
}

/// The second half: `down . inner` of this machine's rows of down. The outputs are columns of
/// `sum`, where they are added up in the order of the sum.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertDown {
    /// One head: the columns of this machine.
    pub sum: Heads,
    /// Rows of down of a whole expert.
    pub n_hidden: usize,
    /// Rows of this machine.
    pub rows: Range<usize>,
    /// Biases of whole experts.
    pub biases: Option<ExpertBiases>,
}

/// Biases added after the products of experts.
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
    /// Returns the biases in the order of the products.
    #[must_use]
    pub const fn all(&self) -> [VectorId; 3] {
        [self.gate, self.up, self.down]
    }
}

/// `out = residual + (sum of weight * partial in ascending expert index + shared)`, where `shared`
/// is multiplied by `sigmoid(shared_gate)` if there is one. All sums are in that order.
#[derive(Clone, Debug, PartialEq)]
pub struct Combine {
    /// The sum that [`ExpertFfn`] left.
    pub sum: Heads,
    /// Output of the shared expert.
    pub shared: Option<Heads>,
    /// One column.
    pub shared_gate: Option<Heads>,
    /// Added last; zeros if `None`.
    pub residual: Option<Heads>,
    /// Output; may be `residual`.
    pub out: Heads,
}

/// Finds the largest values of a row, largest first, followed by their columns as floats. Of equal
/// values, 0 and -0 included, the one further left comes first. NaN ranks above all numbers, so the
/// first value shows a failed computation.
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    /// One head of fewer than 2^24 columns, so that a float represents each exactly.
    pub x: Heads,
    /// One head: the values, at most `N_BEST_MAX` and at most the columns of `x`, then as many
    /// columns; a different buffer from `x`.
    pub out: Heads,
}

/// Maximum number of values that [`TopK`] finds.
pub(crate) const N_BEST_MAX: usize = 64;

impl Op {
    /// Returns the name for plans, profiles and test failures.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::SelectRows(_) => "select_rows",
            Self::RmsNorm(_) => "rms_norm",
            Self::LayerNorm(_) => "layer_norm",
            Self::L2Norm(_) => "l2_norm",
            Self::MatMul(_) => "matmul",
            Self::HeadMatMul(_) => "head_matmul",
            Self::Rope(_) => "rope",
            Self::Attention(_) => "attention",
            Self::PoolKeys(_) => "pool_keys",
            Self::SelectPositions(_) => "select_positions",
            Self::MlaAttention(_) => "mla_attention",
            Self::CausalConv(_) => "causal_conv",
            Self::DeltaGates(_) => "delta_gates",
            Self::GatedDelta(_) => "gated_delta",
            Self::SwiGlu(_) => "swiglu",
            Self::Add(_) => "add",
            Self::Activate(_) => "activate",
            Self::HeadDot(_) => "head_dot",
            Self::StreamRead(_) => "stream_read",
            Self::StreamWrite(_) => "stream_write",
            Self::Route(_) => "route",
            Self::ExpertFfn(_) => "expert_ffn",
            Self::ExpertUp(_) => "expert_up",
            Self::ExpertDown(_) => "expert_down",
            Self::Combine(_) => "combine",
            Self::TopK(_) => "best",
        }
    }

    /// Returns the resident matrices that the op uses.
    #[must_use]
    pub fn matrices(&self) -> Vec<MatrixId> {
        match self {
            Self::Embed(op) => vec![op.table],
            Self::MatMul(op) => vec![op.weight],
            Self::HeadMatMul(op) => vec![op.weight],
            _ => Vec::new(),
        }
    }

    /// Returns the vectors that the op uses.
    #[must_use]
    pub fn vectors(&self) -> Vec<VectorId> {
        match self {
            Self::RmsNorm(op) => vec![op.gain.vector()],
            Self::LayerNorm(op) => vec![op.gain, op.bias],
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

    /// Returns every view of a buffer that the op reads or writes, outputs last.
    #[must_use]
    pub fn heads(&self) -> Vec<Heads> {
        let with = |required: &[Heads], optional: &[Option<Heads>]| {
            optional.iter().flatten().chain(required).copied().collect()
        };
        match self {
            Self::Embed(op) => vec![op.out],
            Self::SelectRows(op) => vec![op.x, op.out],
            Self::RmsNorm(op) => with(&[op.x, op.out], &[op.gate.map(|gate| gate.x)]),
            Self::LayerNorm(op) => vec![op.x, op.out],
            Self::L2Norm(op) => vec![op.x],
            Self::MatMul(op) => vec![op.x, op.out],
            Self::HeadMatMul(op) => vec![op.x, op.out],
            Self::Rope(op) => vec![op.x],
            Self::Attention(op) => {
                with(&[op.q, op.k, op.v, op.out], &[op.gate, op.chosen.map(|chosen| chosen.list)])
            }
            Self::PoolKeys(op) => vec![op.k, op.out],
            Self::SelectPositions(op) => {
                let own = [Some(op.q), Some(op.k), op.weights, Some(op.chosen.list)];
                own.into_iter().flatten().collect()
            }
            Self::MlaAttention(op) => with(
                &[op.q_latent, op.q_rope, op.latent, op.k_rope, op.out],
                &[op.chosen.map(|chosen| chosen.list)],
            ),
            Self::CausalConv(op) => vec![op.x, op.out],
            Self::DeltaGates(op) => vec![op.a, op.b, op.decay, op.beta],
            Self::GatedDelta(op) => vec![op.q, op.k, op.v, op.decay, op.beta, op.out],
            Self::SwiGlu(op) => vec![op.gate, op.up, op.out],
            Self::Add(op) => vec![op.x, op.y, op.out],
            Self::Activate(op) => vec![op.x, op.out],
            Self::HeadDot(op) => vec![op.x, op.y, op.out],
            Self::StreamRead(op) => vec![op.streams, op.weights.heads(), op.out],
            Self::StreamWrite(op) => op.heads(),
            Self::Route(op) => vec![op.logits],
            Self::ExpertFfn(op) => vec![op.x, op.sum],
            Self::ExpertUp(op) => vec![op.x],
            Self::ExpertDown(op) => vec![op.sum],
            Self::Combine(op) => {
                let sum = [Some(op.sum), op.residual, Some(op.out)];
                [op.shared, op.shared_gate].into_iter().chain(sum).flatten().collect()
            }
            Self::TopK(op) => vec![op.x, op.out],
        }
    }
}
