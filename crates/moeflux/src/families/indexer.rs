//! The indexer of sparse attention: queries and keys of its own, by which it chooses positions.
//!
//! The published models multiply all scores by a positive constant. That changes no choice, and is
//! left out.

use crate::error::Result;
use crate::families::layer_builder::LayerBuilder;
use crate::ops::{ChosenPositions, LayerNorm, Op, Rope, SelectPositions};
use crate::spec::{IndexerSpec, MlaSpec, PositionChoice};

/// Epsilon of the norm of keys, regardless of the config.
const KEY_EPSILON: f32 = 1e-6;

/// Appends the choice of positions, unless the layer shares that of a layer below; it reads
/// `normed` and the bottleneck of the queries.
pub(super) fn push(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MlaSpec,
    ops: &mut Vec<Op>,
) -> Result<Option<ChosenPositions>> {
    let Some(choice) = spec.choice else { return Ok(None) };
    let list = builder.buffer("chosen", choice.n_chosen());
    let chosen = ChosenPositions { list };
    if let PositionChoice::Own(indexer) = choice {
        push_own(builder, (spec, indexer), chosen, ops)?;
    }
    Ok(Some(chosen))
}

fn push_own(
    builder: &mut LayerBuilder<'_, '_>,
    (spec, indexer): (&MlaSpec, IndexerSpec),
    chosen: ChosenPositions,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let IndexerSpec { n_heads, head_dim, q_rank, pairing, .. } = indexer;
    let low = builder.buffer("q_low", q_rank);
    let q_row = builder.buffer("index_q", n_heads * head_dim);
    let k = builder.buffer("index_k", head_dim);
    let weights = builder.buffer("index_weights", n_heads);
    ops.push(builder.linear("self_attn.indexer.wq_b", low, q_row)?);
    ops.push(builder.linear("self_attn.indexer.wk", builder.normed, k)?);
    ops.push(builder.linear("self_attn.indexer.weights_proj", builder.normed, weights)?);
    let norm = builder.name("self_attn.indexer.k_norm");
    let gain = builder.binder.vector(&format!("{norm}.weight"), head_dim)?;
    let bias = builder.binder.vector(&format!("{norm}.bias"), head_dim)?;
    ops.push(Op::LayerNorm(LayerNorm { x: k, gain, bias, out: k, epsilon: KEY_EPSILON }));
    let q = q_row.split(n_heads);
    let frequencies = builder.binder.frequencies(&spec.rope)?;
    let amplitude = spec.rope.amplitude();
    for x in [q, k] {
        let x = x.narrow(0, spec.rope_dim);
        ops.push(Op::Rope(Rope { x, frequencies, pairing, amplitude }));
    }
    let layer = builder.layer;
    ops.push(Op::SelectPositions(SelectPositions { layer, q, k, weights, chosen }));
    Ok(())
}
