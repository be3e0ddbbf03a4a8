//! The structure that all families share: embedding, layers, final norm, output matrix.

use crate::error::Result;
use crate::families::ffn::FfnBias;
use crate::families::layer_builder::{Block, LayerBuilder, LayerStreams};
use crate::families::streams::{StreamBuffers, as_row};
use crate::families::{
    LayerPlan, ModelPlan, TableLookup, attention, ffn, gated_delta, mla, ngrams, streams,
};
use crate::ids::{BufferId, LayerIdx};
use crate::ops::{
    Embed, Gain, Heads, KeptInputs, LayerState, MatMul, N_BEST_MAX, Op, Plan, RmsNorm, RowSet,
    SelectRows, StateSpec, TopK, Workspace,
};
use crate::spec::{FfnSpec, LayerSpec, MixerSpec, ModelSpec, NgramSpec, PositionChoice};
use crate::weights::Binder;

/// Binds every tensor of the model and builds its plans.
///
/// # Errors
///
/// The binder's error for a missing tensor or a wrong shape.
pub(crate) fn build(spec: &ModelSpec, binder: &mut Binder<'_>) -> Result<ModelPlan> {
    let mut workspace = Workspace::default();
    let n_streams = spec.streams.map_or(1, |streams| streams.n_streams);
    let stream = workspace.buffer("stream", n_streams * spec.hidden).split(n_streams);
    let normed = workspace.buffer("normed", spec.hidden);
    let streams = spec.streams.as_ref().map(|streams| LayerStreams {
        spec: streams,
        buffers: StreamBuffers::new(&mut workspace, streams, (stream, normed), RowSet::All),
        beta: workspace.buffer("stream_factors", n_streams),
    });
    let table = binder.matrix("model.embed_tokens", spec.vocab, spec.hidden)?;
    let embed = Plan::new(vec![Op::Embed(Embed { table, out: stream })]);

    let mut layers = Vec::with_capacity(spec.layers.len());
    let mut state = StateSpec::default();
    for (layer_idx, layer_spec) in spec.layers.iter().enumerate() {
        let layer = LayerIdx(layer_idx);
        let ngrams = spec.ngrams.iter().find(|ngrams| ngrams.layer == layer);
        let kept = state_of(&layer_spec.mixer, ngrams, n_streams * spec.hidden);
        let n_conv_values = match kept {
            LayerState::Recurrent { conv_values, .. } => conv_values,
            _ => 0,
        };
        state.layers.push(kept);
        let workspace = &mut workspace;
        let mut builder =
            LayerBuilder { spec, binder, workspace, layer, stream, streams, n_conv_values, normed };
        layers.push(layer_plan(&mut builder, layer_spec, ngrams)?);
    }

    let (mut ops, selected) = collapse(spec, binder, (&mut workspace, stream))?;
    let logits = workspace.output_buffer("logits", spec.vocab);
    let best = workspace.output_buffer("best", 2 * N_BEST_MAX.min(spec.vocab));
    let weight = if spec.tied_embeddings {
        table
    } else {
        binder.matrix("lm_head", spec.vocab, spec.hidden)?
    };
    ops.push(Op::MatMul(MatMul { weight, bias: None, x: selected, out: logits }));
    let head = Plan::over(RowSet::Outputs, ops.clone());
    ops.push(Op::TopK(TopK { x: logits, out: best }));
    let head_and_best = Plan::over(RowSet::Outputs, ops);
    let carried = carried(stream, &layers);
    Ok(ModelPlan { workspace, state, carried, embed, layers, head, logits, head_and_best, best })
}

/// Returns the buffers that pass from layer to layer.
fn carried(stream: Heads, layers: &[LayerPlan]) -> Vec<BufferId> {
    let chooses = |op: &Op| matches!(op, Op::SelectPositions(_));
    let shared = layers.iter().find_map(|layer| {
        let ops = layer.mixer.ops();
        let list = ops.iter().find_map(|op| match op {
            Op::MlaAttention(attention) => attention.chosen.map(|chosen| chosen.list.buffer),
            _ => None,
        });
        list.filter(|_| !ops.iter().any(chooses))
    });
    std::iter::once(stream.buffer).chain(shared).collect()
}

/// Returns the ops that bring the wanted rows of the residual stream to the output matrix, and its
/// input.
fn collapse(
    spec: &ModelSpec,
    binder: &mut Binder<'_>,
    (workspace, stream): (&mut Workspace, Heads),
) -> Result<(Vec<Op>, Heads)> {
    let row = as_row(stream);
    let selected = workspace.output_buffer("selected", row.head_dim);
    let mut ops = vec![Op::SelectRows(SelectRows { x: row, out: selected })];
    let Some(streams) = &spec.streams else {
        let gain = Gain::Shared(binder.norm("model.norm.weight", spec.hidden)?);
        let epsilon = spec.norm_epsilon;
        ops.push(Op::RmsNorm(RmsNorm { x: selected, gain, gate: None, out: selected, epsilon }));
        return Ok((ops, selected));
    };
    let out = workspace.output_buffer("selected_mean", spec.hidden);
    let selected = selected.split(streams.n_streams);
    let buffers = StreamBuffers::new(workspace, streams, (selected, out), RowSet::Outputs);
    let base = "model.hyper_connection_mixer";
    let read = streams::read(binder, (spec, streams), base, &buffers)?;
    ops.push(read.norm);
    ops.extend(read.read);
    Ok((ops, out))
}

fn layer_plan(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &LayerSpec,
    ngrams: Option<&NgramSpec>,
) -> Result<LayerPlan> {
    let mut ops = Vec::new();
    let lookup = match ngrams {
        Some(ngrams) => Some(push_ngrams(builder, ngrams, &mut ops)?),
        None => None,
    };
    builder.read_stream(Block::Mixer, &mut ops)?;
    match &spec.mixer {
        MixerSpec::Attention(attention) => attention::push(builder, attention, &mut ops)?,
        MixerSpec::GatedDelta(delta) => gated_delta::push(builder, delta, &mut ops)?,
        MixerSpec::Mla(mla) => mla::push(builder, mla, &mut ops)?,
    }
    let first_of_router = ops.len();
    builder.read_stream(Block::FeedForward, &mut ops)?;
    let moe = match &spec.ffn {
        FfnSpec::Dense { inner, has_bias } => {
            let bias = if *has_bias { FfnBias::All } else { FfnBias::None };
            ffn::push_dense(builder, (*inner, bias), &mut ops)?;
            None
        }
        FfnSpec::Moe(moe) => {
            ffn::push_router(builder, moe, &mut ops)?;
            Some(ffn::moe_plan(builder, moe, (&ops, first_of_router))?)
        }
    };
    Ok(LayerPlan { lookup, mixer: Plan::new(ops), moe })
}

fn push_ngrams(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &NgramSpec,
    ops: &mut Vec<Op>,
) -> Result<TableLookup> {
    let streams = builder.streams.expect("rows of n-grams are added to several streams");
    let lookup = ngrams::lookup(builder, spec)?;
    let stream = builder.stream;
    let n_own = ngrams::conv_values(spec, stream.n_heads * stream.head_dim);
    let n_of_layer = builder.n_conv_values;
    let kept = KeptInputs { first: n_of_layer - n_own, n_of_layer };
    ngrams::push(builder, (spec, streams), (lookup.out, kept), ops)?;
    Ok(lookup)
}

/// Returns the state of a layer, whose streams have `n_cols` values together.
fn state_of(mixer: &MixerSpec, ngrams: Option<&NgramSpec>, n_cols: usize) -> LayerState {
    match mixer {
        MixerSpec::Attention(spec) => {
            let cols = spec.n_kv_heads * spec.head_dim;
            let index_cols = spec.indexer.map_or(0, |indexer| indexer.head_dim);
            let n_heads = spec.n_kv_heads;
            LayerState::KeyValue { n_heads, k_cols: cols, v_cols: cols, index_cols }
        }
        MixerSpec::Mla(spec) => {
            let (latent_cols, rope_cols) = (spec.kv_rank, spec.rope_dim);
            let index_cols = match spec.choice {
                Some(PositionChoice::Own(indexer)) => indexer.head_dim,
                Some(PositionChoice::Shared { .. }) | None => 0,
            };
            LayerState::Latent { latent_cols, rope_cols, index_cols }
        }
        MixerSpec::GatedDelta(spec) => LayerState::Recurrent {
            conv_values: (spec.n_taps - 1) * spec.conv_cols()
                + ngrams.map_or(0, |ngrams| ngrams::conv_values(ngrams, n_cols)),
            delta_values: spec.n_v_heads * spec.v_dim * spec.k_dim,
        },
    }
}
