//! Residual streams: the input of a block from them, and its output to them.
//!
//! **Invariant:** the ops of a read write buffers of their own, so that a guess may repeat them
//! while a block still needs what it read.

use moeflux_kernels::{ScaledFunction, ValueFunction};

use crate::error::Result;
use crate::ops::{
    Activate, Gain, Heads, MatMul, Op, RmsNorm, RowSet, StreamRead, StreamWeights, Workspace,
};
use crate::spec::{ModelSpec, StreamSpec};
use crate::weights::Binder;

/// The buffers of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamBuffers {
    /// A head per stream.
    streams: Heads,
    /// The same, normed.
    pub(super) normed: Heads,
    low: Heads,
    /// A weight for each value of `normed`.
    pub(super) weights: Heads,
    /// What the block reads.
    out: Heads,
}

impl StreamBuffers {
    /// Reserves the buffers of reads from `streams` into `out`, for all rows or for output rows.
    pub(super) fn new(
        workspace: &mut Workspace,
        spec: &StreamSpec,
        (streams, out): (Heads, Heads),
        rows: RowSet,
    ) -> Self {
        let n_cols = streams.n_heads * streams.head_dim;
        let mut buffer = |[of_all, of_outputs]: [&'static str; 2], n_cols| match rows {
            RowSet::All => workspace.buffer(of_all, n_cols),
            RowSet::Outputs => workspace.output_buffer(of_outputs, n_cols),
        };
        Self {
            streams,
            normed: buffer(["streams_normed", "selected_normed"], n_cols).split(streams.n_heads),
            low: buffer(["stream_low", "selected_low"], spec.rank),
            weights: buffer(["stream_weights", "selected_weights"], n_cols).split(streams.n_heads),
            out,
        }
    }
}

/// The ops that read streams for a block.
pub(super) struct StreamReadOps {
    /// Norms the streams.
    pub(super) norm: Op,
    /// Derives the weights and reads.
    pub(super) read: Vec<Op>,
}

/// Binds the tensors of the module `base` and returns the ops of its read.
pub(super) fn read(
    binder: &mut Binder<'_>,
    (spec, streams): (&ModelSpec, &StreamSpec),
    base: &str,
    buffers: &StreamBuffers,
) -> Result<StreamReadOps> {
    let &StreamBuffers { normed, low, weights, out, .. } = buffers;
    let n_cols = normed.n_heads * normed.head_dim;
    let gain = Gain::PerHead(binder.norm(&format!("{base}.hc_norm.weight"), n_cols)?);
    let (x, epsilon) = (buffers.streams, spec.norm_epsilon);
    let norm = Op::RmsNorm(RmsNorm { x, gain, gate: None, out: normed, epsilon });
    let row = as_row(normed);
    let down = binder.matrix(&format!("{base}.input_mix_weight_down"), streams.rank, n_cols)?;
    let up = binder.matrix(&format!("{base}.input_mix_weight_up"), n_cols, streams.rank)?;
    let share = 1.0 / streams.n_streams as f32;
    let silu = ScaledFunction { function: ValueFunction::Silu, before: share, after: 1.0 };
    // The mean over streams is part of the weights.
    let sigmoid = ScaledFunction { function: ValueFunction::Sigmoid, before: 1.0, after: share };
    let read = vec![
        Op::MatMul(MatMul { weight: down, bias: None, x: row, out: low }),
        Op::Activate(Activate { x: low, function: silu, out: low }),
        Op::MatMul(MatMul { weight: up, bias: None, x: low, out: as_row(weights) }),
        Op::Activate(Activate { x: weights, function: sigmoid, out: weights }),
        Op::StreamRead(StreamRead {
            streams: normed,
            weights: StreamWeights::PerValue(weights),
            out,
        }),
    ];
    Ok(StreamReadOps { norm, read })
}

/// Binds the matrix of the module `base` that derives the factors of a block's output, and returns
/// the ops that write them to `beta`.
pub(super) fn factors(
    binder: &mut Binder<'_>,
    streams: &StreamSpec,
    base: &str,
    (buffers, beta): (&StreamBuffers, Heads),
) -> Result<[Op; 2]> {
    let x = as_row(buffers.normed);
    let name = format!("{base}.block_inject_weight");
    let weight = binder.matrix(&name, streams.n_streams, x.head_dim)?;
    let before = 1.0 / streams.n_streams as f32;
    let function = ScaledFunction { function: ValueFunction::Sigmoid, before, after: 2.0 };
    Ok([
        Op::MatMul(MatMul { weight, bias: None, x, out: beta }),
        Op::Activate(Activate { x: beta, function, out: beta }),
    ])
}

/// Returns adjacent heads as one.
pub(super) const fn as_row(heads: Heads) -> Heads {
    assert!(heads.stride == heads.head_dim, "the heads are adjacent");
    let n_cols = heads.n_heads * heads.head_dim;
    Heads { n_heads: 1, head_dim: n_cols, stride: n_cols, ..heads }
}
