//! Multi-head latent attention in absorbed form: keys and values stay in latent space; queries are
//! projected into it and the output back.

use crate::error::Result;
use crate::families::indexer;
use crate::families::layer_builder::LayerBuilder;
use crate::ids::MatrixId;
use crate::ops::{Gain, HeadMatMul, Heads, MlaAttention, Op, Orientation, RmsNorm, Rope};
use crate::spec::MlaSpec;

/// Epsilon of the norms inside the block, regardless of the config: the reference implementations
/// keep their default there.
const RANK_EPSILON: f32 = 1e-6;

/// The per-head matrices into and out of latent space.
struct HeadMatrices {
    into: HeadRows,
    out_of: HeadRows,
}

struct HeadRows {
    weight: MatrixId,
    first_row: usize,
    row_stride: usize,
    n_rows: usize,
    orientation: Orientation,
}

/// Appends the block; it reads `normed` and adds to the residual stream.
pub(super) fn push(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MlaSpec,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let q_row = push_queries(builder, spec, ops)?;
    let chosen = indexer::push(builder, spec, ops)?;
    let kv_row = builder.buffer("kv", spec.kv_rank + spec.rope_dim);
    ops.push(linear(builder, spec, ("self_attn.kv_a_proj_with_mqa", builder.normed, kv_row))?);
    let latent = kv_row.narrow(0, spec.kv_rank);
    let k_rope = kv_row.narrow(spec.kv_rank, spec.rope_dim);
    ops.push(rank_norm(builder, "self_attn.kv_a_layernorm", latent)?);

    let q = q_row.split(spec.n_heads);
    let q_rope = q.narrow(spec.nope_dim, spec.rope_dim);
    let frequencies = builder.binder.frequencies(&spec.rope)?;
    for x in [q_rope, k_rope] {
        let (pairing, amplitude) = (spec.rope.pairing, spec.rope.amplitude());
        ops.push(Op::Rope(Rope { x, frequencies, pairing, amplitude }));
    }

    let matrices = bind_head_matrices(builder, spec)?;
    let q_latent = builder.buffer("q_latent", spec.n_heads * spec.kv_rank).split(spec.n_heads);
    let out = builder.buffer("latent_out", spec.n_heads * spec.kv_rank).split(spec.n_heads);
    let out_row = builder.buffer("mixer_out", spec.n_heads * spec.v_dim);
    let mixed = builder.buffer("block_out", builder.spec.hidden);
    let (layer, scale) = (builder.layer, spec.scale);
    ops.push(matrices.into.product(q.narrow(0, spec.nope_dim), q_latent));
    ops.push(Op::MlaAttention(MlaAttention {
        layer,
        q_latent,
        q_rope,
        latent,
        k_rope,
        out,
        scale,
        chosen,
    }));
    ops.push(matrices.out_of.product(out, out_row.split(spec.n_heads)));
    ops.push(linear(builder, spec, ("self_attn.o_proj", out_row, mixed))?);
    ops.push(builder.add_to_stream(mixed));
    Ok(())
}

fn push_queries(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MlaSpec,
    ops: &mut Vec<Op>,
) -> Result<Heads> {
    let q_row = builder.buffer("q", spec.n_heads * (spec.nope_dim + spec.rope_dim));
    let Some(rank) = spec.q_rank else {
        ops.push(builder.linear("self_attn.q_proj", builder.normed, q_row)?);
        return Ok(q_row);
    };
    let low = builder.buffer("q_low", rank);
    ops.push(linear(builder, spec, ("self_attn.q_a_proj", builder.normed, low))?);
    ops.push(rank_norm(builder, "self_attn.q_a_layernorm", low)?);
    ops.push(builder.linear("self_attn.q_b_proj", low, q_row)?);
    Ok(q_row)
}

/// Appends one of the projections whose bias depends on the config: module, input, output.
fn linear(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MlaSpec,
    (module, x, out): (&str, Heads, Heads),
) -> Result<Op> {
    if spec.has_bias {
        builder.linear_with_bias(module, x, out)
    } else {
        builder.linear(module, x, out)
    }
}

fn rank_norm(builder: &mut LayerBuilder<'_, '_>, module: &str, x: Heads) -> Result<Op> {
    let gain = builder.binder.vector(&builder.name(&format!("{module}.weight")), x.head_dim)?;
    let gain = Gain::Shared(gain);
    Ok(Op::RmsNorm(RmsNorm { x, gain, gate: None, out: x, epsilon: RANK_EPSILON }))
}

/// Binds the per-head matrices. MLX stores the absorbed pair `embed_q` and `unembed_out`. Published
/// checkpoints store `kv_b_proj` with rows `[key | value]` per head; its key part is applied
/// transposed.
fn bind_head_matrices(builder: &mut LayerBuilder<'_, '_>, spec: &MlaSpec) -> Result<HeadMatrices> {
    let (n_heads, kv_rank) = (spec.n_heads, spec.kv_rank);
    let embed_q = builder.name("self_attn.embed_q");
    if builder.binder.has(&format!("{embed_q}.weight")) {
        let unembed_out = builder.name("self_attn.unembed_out");
        return Ok(HeadMatrices {
            into: HeadRows {
                weight: builder.binder.stacked(&embed_q, n_heads, kv_rank, spec.nope_dim)?,
                first_row: 0,
                row_stride: kv_rank,
                n_rows: kv_rank,
                orientation: Orientation::RowsToOut,
            },
            out_of: HeadRows {
                weight: builder.binder.stacked(&unembed_out, n_heads, spec.v_dim, kv_rank)?,
                first_row: 0,
                row_stride: spec.v_dim,
                n_rows: spec.v_dim,
                orientation: Orientation::RowsToOut,
            },
        });
    }
    let row_stride = spec.nope_dim + spec.v_dim;
    let kv_b = builder.name("self_attn.kv_b_proj");
    let weight = builder.binder.matrix(&kv_b, n_heads * row_stride, kv_rank)?;
    Ok(HeadMatrices {
        into: HeadRows {
            weight,
            first_row: 0,
            row_stride,
            n_rows: spec.nope_dim,
            orientation: Orientation::RowsFromIn,
        },
        out_of: HeadRows {
            weight,
            first_row: spec.nope_dim,
            row_stride,
            n_rows: spec.v_dim,
            orientation: Orientation::RowsToOut,
        },
    })
}

impl HeadRows {
    fn product(&self, x: Heads, out: Heads) -> Op {
        Op::HeadMatMul(HeadMatMul {
            weight: self.weight,
            first_row: self.first_row,
            row_stride: self.row_stride,
            n_rows: self.n_rows,
            orientation: self.orientation,
            x,
            out,
        })
    }
}
