//! Rows of n-grams that a layer adds to its residual streams: projections, a gate for each stream,
//! and a short convolution.
//!
//! **Invariant:** the rows of all heads lie side by side in one buffer before the layer runs.

use moeflux_kernels::{ScaledFunction, ValueFunction};

use crate::error::Result;
use crate::families::TableLookup;
use crate::families::layer_builder::{LayerBuilder, LayerStreams};
use crate::families::streams::as_row;
use crate::ops::{
    Activate, Add, CausalConv, Gain, HeadDot, Heads, KeptInputs, Op, RmsNorm, StreamBase,
    StreamWrite,
};
use crate::rows::NgramHash;
use crate::spec::NgramSpec;

/// Minimum under the root of a gate.
const ROOT_FLOOR: f32 = 1e-6;

/// Returns the values of the inputs that the convolution keeps, for streams of `n_cols` values
/// together.
pub(super) const fn conv_values(spec: &NgramSpec, n_cols: usize) -> usize {
    (spec.n_taps - 1) * spec.dilation() * n_cols
}

/// Binds the table of a layer and returns the rows that a token needs.
pub(super) fn lookup(builder: &mut LayerBuilder<'_, '_>, spec: &NgramSpec) -> Result<TableLookup> {
    let hash = NgramHash::new(&spec.shape);
    let prefix = builder.name("ple.ple_embedding");
    let constants = hash.constants();
    for (tensor, values) in [
        ("layer_multipliers", constants.multipliers),
        ("ngram_heads_vocab_sizes", constants.n_rows_of_heads),
        ("ngram_heads_offsets", constants.first_rows),
    ] {
        builder.binder.known_integers(&format!("{prefix}.{tensor}"), values)?;
    }
    let n_cols = spec.width / spec.n_rows();
    let name = format!("{prefix}.ngram_embedding");
    let table = builder.binder.row_table(&name, hash.n_rows(), n_cols)?;
    let out = builder.buffer("table_rows", spec.width).split(spec.n_rows());
    Ok(TableLookup { table, hash, out })
}

/// Appends the ops that add the rows in `rows` to the streams. The layer keeps its convolution's
/// inputs at `kept`.
pub(super) fn push(
    builder: &mut LayerBuilder<'_, '_>,
    (spec, streams): (&NgramSpec, LayerStreams<'_>),
    (rows, kept): (Heads, KeptInputs),
    ops: &mut Vec<Op>,
) -> Result<()> {
    let rows = as_row(rows);
    let (stream, beta) = (builder.stream, streams.beta);
    let n_cols = stream.n_heads * stream.head_dim;
    let gated = builder.buffer("ngram_values", n_cols).split(stream.n_heads);
    let value = builder.buffer("block_out", stream.head_dim);
    let (normed, convolved) = (streams.buffers.normed, streams.buffers.weights);

    // How well the keys fit the streams decides how much of the value each stream takes.
    ops.push(builder.linear("ple.key_proj", rows, as_row(gated))?);
    ops.push(builder.linear("ple.value_proj", rows, value)?);
    ops.push(norm(builder, "ple.norm_key", (gated, gated))?);
    ops.push(norm(builder, "ple.norm_query", (stream, normed))?);
    let factor = 1.0 / (stream.head_dim as f32).sqrt();
    ops.push(Op::HeadDot(HeadDot { x: gated, y: normed, factor, out: beta }));
    for function in [ValueFunction::SignedRoot { floor: ROOT_FLOOR }, ValueFunction::Sigmoid] {
        let function = ScaledFunction { function, before: 1.0, after: 1.0 };
        ops.push(Op::Activate(Activate { x: beta, function, out: beta }));
    }
    let base = StreamBase::Nothing;
    ops.push(Op::StreamWrite(StreamWrite { base, beta, x: value, out: gated }));

    ops.push(norm(builder, "ple.norm_conv", (gated, normed))?);
    let tensor = builder.name("ple.conv1d.weight");
    ops.push(Op::CausalConv(CausalConv {
        layer: builder.layer,
        kept,
        x: as_row(normed),
        weight: builder.binder.vector(&tensor, n_cols * spec.n_taps)?,
        n_taps: spec.n_taps,
        dilation: spec.dilation(),
        out: as_row(convolved),
    }));
    ops.push(Op::Add(Add { x: gated, y: convolved, out: gated }));
    ops.push(Op::Add(Add { x: stream, y: gated, out: stream }));
    Ok(())
}

/// Returns the op for a norm with gains for each stream.
fn norm(builder: &mut LayerBuilder<'_, '_>, module: &str, (x, out): (Heads, Heads)) -> Result<Op> {
    let tensor = builder.name(&format!("{module}.weight"));
    let gain = Gain::PerHead(builder.binder.norm(&tensor, x.n_heads * x.head_dim)?);
    let epsilon = builder.spec.norm_epsilon;
    Ok(Op::RmsNorm(RmsNorm { x, gain, gate: None, out, epsilon }))
}
