//! Gated DeltaNet: projections, short convolution, delta rule, gated norm, output.

use std::ops::Range;

use crate::error::Result;
use crate::families::layer_builder::LayerBuilder;
use crate::ops::{
    CausalConv, DeltaGates, Gain, GatedDelta, Heads, KeptInputs, L2Norm, MatMul, NormGate, Op,
    RmsNorm,
};
use crate::spec::{Family, GatedDeltaSpec};

/// Added to the sum of squares of a query or key, regardless of the config's norms.
const HEAD_EPSILON: f32 = 1e-6;

/// The projections' outputs.
struct Projected {
    /// Channels of the convolution: queries, keys, values.
    qkv: Heads,
    /// Gate of the output.
    z: Heads,
    /// Write strength, before its sigmoid.
    b: Heads,
    /// Decay, before its transformation.
    a: Heads,
}

/// Appends the block; it reads `normed` and adds to the residual stream.
pub(super) fn push(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &GatedDeltaSpec,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let (n_k_heads, n_v_heads) = (spec.n_k_heads, spec.n_v_heads);
    let (k_cols, v_cols) = (n_k_heads * spec.k_dim, n_v_heads * spec.v_dim);
    let projected = Projected {
        qkv: builder.buffer("delta_qkv", spec.conv_cols()),
        z: builder.buffer("delta_z", v_cols),
        b: builder.buffer("delta_b", n_v_heads),
        a: builder.buffer("delta_a", n_v_heads),
    };
    let conv = builder.buffer("delta_conv", spec.conv_cols());
    let out_row = builder.buffer("mixer_out", v_cols);
    let mixed = builder.buffer("block_out", builder.spec.hidden);
    push_projections(builder, spec, &projected, ops)?;

    let taps = builder.name("linear_attn.conv1d.weight");
    let weight = builder.binder.vector(&taps, spec.conv_cols() * spec.n_taps)?;
    let layer = builder.layer;
    ops.push(Op::CausalConv(CausalConv {
        layer,
        kept: KeptInputs { first: 0, n_of_layer: builder.n_conv_values },
        x: projected.qkv,
        weight,
        n_taps: spec.n_taps,
        dilation: 1,
        out: conv,
    }));
    let q = conv.narrow(0, k_cols).split(n_k_heads);
    let k = conv.narrow(k_cols, k_cols).split(n_k_heads);
    let v = conv.narrow(2 * k_cols, v_cols).split(n_v_heads);
    let factor = 1.0 / (spec.k_dim as f32).sqrt();
    ops.push(Op::L2Norm(L2Norm { x: q, epsilon: HEAD_EPSILON, factor }));
    ops.push(Op::L2Norm(L2Norm { x: k, epsilon: HEAD_EPSILON, factor: 1.0 }));

    let (decay, beta) = (projected.a, projected.b);
    ops.push(Op::DeltaGates(DeltaGates {
        a: projected.a,
        b: projected.b,
        a_log: builder.binder.decay_log(&builder.name("linear_attn.A_log"), n_v_heads)?,
        dt_bias: builder.binder.vector(&builder.name("linear_attn.dt_bias"), n_v_heads)?,
        decay,
        beta,
    }));
    let out = out_row.split(n_v_heads);
    ops.push(Op::GatedDelta(GatedDelta { layer, q, k, v, decay, beta, out, order: spec.order }));

    // In these families the only norm that is not zero-centred.
    let gain = builder.binder.vector(&builder.name("linear_attn.norm.weight"), spec.v_dim)?;
    let gain = Gain::Shared(gain);
    let gate = NormGate { x: projected.z.split(n_v_heads), function: spec.gate };
    let gate = Some(gate);
    let epsilon = builder.spec.norm_epsilon;
    ops.push(Op::RmsNorm(RmsNorm { x: out, gain, gate, out, epsilon }));
    ops.push(builder.linear("linear_attn.out_proj", out_row, mixed)?);
    ops.push(builder.add_to_stream(mixed));
    Ok(())
}

/// Appends the projections to `[q | k | v]`, the gate, `b` and `a`, stored separately or
/// interleaved.
fn push_projections(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &GatedDeltaSpec,
    projected: &Projected,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let x = builder.normed;
    let is_next = builder.spec.family == Family::Qwen3Next;
    let has = |module: &str| {
        let tensor = builder.name(&format!("linear_attn.{module}.weight"));
        builder.binder.has(&tensor)
    };
    // A GGUF file stores the first two separately and the others interleaved.
    let (are_apart, are_gates_apart) = (has("in_proj_qkv"), has("in_proj_b"));
    if is_next && !are_apart {
        push_fused(builder, &fused_qkvz(spec, projected), ops)?;
    } else {
        ops.push(builder.linear("linear_attn.in_proj_qkv", x, projected.qkv)?);
        ops.push(builder.linear("linear_attn.in_proj_z", x, projected.z)?);
    }
    if is_next && !are_gates_apart {
        return push_fused(builder, &fused_gates(spec, projected), ops);
    }
    ops.push(builder.linear("linear_attn.in_proj_b", x, projected.b)?);
    ops.push(builder.linear("linear_attn.in_proj_a", x, projected.a)?);
    Ok(())
}

/// A matrix whose rows go to two outputs.
struct FusedMatrix {
    module: &'static str,
    n_rows: usize,
    parts: [(Vec<Range<usize>>, Heads); 2],
}

/// Returns a function that selects the same rows of every key head; heads have `stride` rows each.
fn of_each_head(
    spec: &GatedDeltaSpec,
    stride: usize,
) -> impl Fn(usize, usize) -> Vec<Range<usize>> {
    let n_k_heads = spec.n_k_heads;
    move |first, n_rows| {
        let firsts = (0..n_k_heads).map(|head_idx| head_idx * stride + first);
        firsts.map(|first| first..first + n_rows).collect()
    }
}

/// Describes the interleaved matrix of qwen3_next, `[q | k | v | z]` by key head (its gates are
/// `[b | a]`). Rows of a matrix may be in any order, so they are separated when loading.
fn fused_qkvz(spec: &GatedDeltaSpec, projected: &Projected) -> FusedMatrix {
    let v_per_k = spec.n_v_heads / spec.n_k_heads * spec.v_dim;
    let stride = 2 * spec.k_dim + 2 * v_per_k;
    let rows = of_each_head(spec, stride);
    let q = rows(0, spec.k_dim);
    let k = rows(spec.k_dim, spec.k_dim);
    let v = rows(2 * spec.k_dim, v_per_k);
    let z = rows(2 * spec.k_dim + v_per_k, v_per_k);
    let parts = [([q, k, v].concat(), projected.qkv), (z, projected.z)];
    FusedMatrix { module: "in_proj_qkvz", n_rows: spec.n_k_heads * stride, parts }
}

fn fused_gates(spec: &GatedDeltaSpec, projected: &Projected) -> FusedMatrix {
    let n_v_per_k = spec.n_v_heads / spec.n_k_heads;
    let rows = of_each_head(spec, 2 * n_v_per_k);
    let parts = [(rows(0, n_v_per_k), projected.b), (rows(n_v_per_k, n_v_per_k), projected.a)];
    FusedMatrix { module: "in_proj_ba", n_rows: 2 * spec.n_v_heads, parts }
}

fn push_fused(
    builder: &mut LayerBuilder<'_, '_>,
    fused: &FusedMatrix,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let base = builder.name(&format!("linear_attn.{}", fused.module));
    for (rows, out) in &fused.parts {
        let (n_rows, hidden) = (fused.n_rows, builder.spec.hidden);
        let weight = builder.binder.matrix_rows(&base, n_rows, hidden, rows.clone())?;
        ops.push(Op::MatMul(MatMul { weight, bias: None, x: builder.normed, out: *out }));
    }
    Ok(())
}
