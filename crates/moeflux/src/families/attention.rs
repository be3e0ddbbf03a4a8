//! Grouped-query attention: projections, norms per head, rope, softmax, output.

use crate::error::Result;
use crate::families::layer_builder::LayerBuilder;
use crate::ops::{Attention, Gain, Heads, Op, RmsNorm, Rope};
use crate::spec::{AttentionBias, AttentionSpec, QkNorm};

/// Appends the block; it reads `normed` and adds to the residual stream.
pub(super) fn push(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &AttentionSpec,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let head_dim = spec.head_dim;
    // With a gate, the rows of q_proj are [query | gate] per head.
    let q_stride = if spec.has_gate { 2 * head_dim } else { head_dim };
    let q_row = builder.buffer("q", spec.n_heads * q_stride);
    let k_row = builder.buffer("k", spec.n_kv_heads * head_dim);
    let v_row = builder.buffer("v", spec.n_kv_heads * head_dim);
    let out_row = builder.buffer("mixer_out", spec.n_heads * head_dim);
    let mixed = builder.buffer("block_out", builder.spec.hidden);

    let x = builder.normed;
    for (module, out) in [("q_proj", q_row), ("k_proj", k_row), ("v_proj", v_row)] {
        let module = format!("self_attn.{module}");
        ops.push(match spec.bias {
            AttentionBias::None => builder.linear(&module, x, out)?,
            AttentionBias::Qkv | AttentionBias::QkvAndOut => {
                builder.linear_with_bias(&module, x, out)?
            }
        });
    }

    let q_and_gate = q_row.split(spec.n_heads);
    let q = q_and_gate.narrow(0, head_dim);
    let k = k_row.split(spec.n_kv_heads);
    let normed = match spec.norm {
        QkNorm::None => None,
        QkNorm::Heads => Some([q, k]),
        QkNorm::Row => Some([q_row, k_row]),
    };
    if let Some([q, k]) = normed {
        ops.push(norm(builder, "self_attn.q_norm", q)?);
        ops.push(norm(builder, "self_attn.k_norm", k)?);
    }
    let frequencies = builder.binder.frequencies(&spec.rope)?;
    for x in [q, k] {
        ops.push(Op::Rope(Rope {
            x: x.narrow(0, spec.rope.n_rotated),
            frequencies,
            pairing: spec.rope.pairing,
            amplitude: spec.rope.amplitude(),
        }));
    }
    let sinks = match spec.has_sinks {
        true => Some(builder.binder.vector(&builder.name("self_attn.sinks"), spec.n_heads)?),
        false => None,
    };
    ops.push(Op::Attention(Attention {
        layer: builder.layer,
        q,
        k,
        v: v_row.split(spec.n_kv_heads),
        gate: spec.has_gate.then(|| q_and_gate.narrow(head_dim, head_dim)),
        out: out_row.split(spec.n_heads),
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: spec.window,
        sinks,
    }));
    ops.push(match spec.bias {
        AttentionBias::None | AttentionBias::Qkv => {
            builder.linear("self_attn.o_proj", out_row, mixed)?
        }
        AttentionBias::QkvAndOut => builder.linear_with_bias("self_attn.o_proj", out_row, mixed)?,
    });
    ops.push(builder.add_to_stream(mixed));
    Ok(())
}

fn norm(builder: &mut LayerBuilder<'_, '_>, module: &str, x: Heads) -> Result<Op> {
    let tensor = builder.name(&format!("{module}.weight"));
    let gain = Gain::Shared(builder.binder.norm(&tensor, x.head_dim)?);
    let epsilon = builder.spec.norm_epsilon;
    Ok(Op::RmsNorm(RmsNorm { x, gain, gate: None, out: x, epsilon }))
}
