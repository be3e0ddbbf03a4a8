//! `qwen4_exp`: the layers of `qwen3_next` around several residual streams. Its attention is sparse
//! beyond the budget of its indexer, and some layers may add rows of n-grams.

use crate::error::Result;
use crate::ids::LayerIdx;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, N_TAPS_MAX, attention, gated_delta};
use crate::spec::config::CheckedConfig;
use crate::spec::families::indexer::{self, N_CHOSEN_MAX};
use crate::spec::families::qwen3_next::moe;
use crate::spec::ngrams::NgramShape;
use crate::spec::streams::{GateFunction, N_STREAMS_MAX, NgramSpec, StreamSpec};
use crate::spec::{
    AttentionBias, AttentionSpec, BlockIndexerSpec, Family, GatedDeltaSpec, LayerSpec, MixerSpec,
    ModelSpec, QkNorm,
};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let ffn = moe(config, config.flag_or("norm_topk_prob", true)?)?;
    let traits = AttentionTraits {
        has_gate: true,
        norm: QkNorm::Heads,
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let full = attention(config, &traits, common.hidden)?;
    let indexer = indexer(config, (&full, common.context_max))?;
    let full = MixerSpec::Attention(AttentionSpec { indexer, ..full });
    let gate = gate(config)?;
    let linear = MixerSpec::GatedDelta(GatedDeltaSpec { gate, ..gated_delta(config)? });
    let is_full = is_full(config, common.n_layers)?;
    let streams = streams(config, common.hidden)?;
    let ngrams = ngrams(config, &common, &is_full)?;
    let layers = is_full.into_iter().map(|is_full| {
        let mixer = if is_full { full.clone() } else { linear.clone() };
        LayerSpec { mixer, ffn: ffn.clone() }
    });
    let spec = common.into_spec(Family::Qwen4Exp, layers.collect());
    Ok(ModelSpec { streams: Some(streams), ngrams, ..spec })
}

/// Returns whether each layer has full attention, which published configs call by either name.
fn is_full(config: &CheckedConfig<'_>, n_layers: usize) -> Result<Vec<bool>> {
    config.is_full_attention(n_layers, &["full_attention", "indexed_attention"])
}

fn streams(config: &CheckedConfig<'_>, hidden: usize) -> Result<StreamSpec> {
    let key = "hc_count";
    let n_streams = config.width_or(key, 4)?;
    if !(2..=N_STREAMS_MAX).contains(&n_streams) {
        return Err(config.text.wrong(key, &format!("from 2 to {N_STREAMS_MAX} streams")));
    }
    config.fits((key, n_streams), ("hidden_size", hidden))?;
    Ok(StreamSpec { n_streams, rank: config.width_or("hc_lowrank", 320)? })
}

/// Returns the layers that add rows of n-grams, ascending. In the config they are counted from 1.
fn ngrams(
    config: &CheckedConfig<'_>,
    common: &CommonConfig,
    is_full: &[bool],
) -> Result<Vec<NgramSpec>> {
    let key = "ple_layer_ids";
    let mut numbers = config.text.usize_list_opt(key)?.unwrap_or_default();
    numbers.sort_unstable();
    numbers.dedup();
    let mut specs = Vec::with_capacity(numbers.len().min(is_full.len()));
    for (table_idx, number) in numbers.into_iter().enumerate() {
        let layer_idx = number.wrapping_sub(1);
        match is_full.get(layer_idx) {
            Some(false) => {}
            Some(true) => {
                let advice = "only layers of linear attention can add rows of n-grams";
                return Err(config.text.unsupported(key, advice));
            }
            None => {
                let expected = format!("layers from 1 to {}", is_full.len());
                return Err(config.text.wrong(key, &expected));
            }
        }
        specs.push(ngrams_of(config, common, (LayerIdx(layer_idx), table_idx))?);
    }
    Ok(specs)
}

fn ngrams_of(
    config: &CheckedConfig<'_>,
    common: &CommonConfig,
    (layer, table_idx): (LayerIdx, usize),
) -> Result<NgramSpec> {
    let Some(&end) = common.eos.first() else {
        return Err(config.text.missing("eos_token_id"));
    };
    let whole =
        |key: &str, default: usize| Ok(config.text.usize_opt(key)?.unwrap_or(default) as u64);
    let shape = NgramShape {
        vocab: common.vocab,
        n_tokens_max: config.width_or("ngram_size", 3)?,
        n_heads_each: config.width_or("heads_per_ngram", 8)?,
        n_rows_min: whole("ngram_vocab_size_base", 20_000_000)?,
        divisor: whole("make_ngram_vocab_size_divisible_by", 128)?,
        seed: seed(config)?,
        table_idx,
        end,
    };
    if let Err(problem) = shape.check() {
        return Err(config.text.unsupported("ple_layer_ids", &problem));
    }
    let width = config.width_or("ple_embed_dim", common.hidden)?;
    if !width.is_multiple_of(shape.n_heads()) {
        let expected = format!("a multiple of {}, the rows of a token", shape.n_heads());
        return Err(config.text.wrong("ple_embed_dim", &expected));
    }
    let key = "ple_conv_kernel_size";
    let n_taps = config.width_or(key, 4)?;
    if !(2..=N_TAPS_MAX).contains(&n_taps) {
        return Err(config.text.wrong(key, &format!("from 2 to {N_TAPS_MAX} taps")));
    }
    Ok(NgramSpec { layer, shape, width, n_taps })
}

/// Returns the seed of the hashes' multipliers.
fn seed(config: &CheckedConfig<'_>) -> Result<i64> {
    let key = "seed";
    match config.text.value(key) {
        None => Ok(1234),
        Some(value) => {
            value.as_i64().ok_or_else(|| config.text.wrong(key, "an integer of 64 bits"))
        }
    }
}

/// Returns the gate behind the norm of the linear layers.
fn gate(config: &CheckedConfig<'_>) -> Result<GateFunction> {
    let key = "output_gate_type";
    match config.text.str_opt(key)? {
        None | Some("silu") => Ok(GateFunction::Silu),
        Some("sigmoid") => Ok(GateFunction::Sigmoid),
        Some(_) => Err(config.text.wrong(key, "\"sigmoid\" or \"silu\"")),
    }
}

/// Returns the indexer of the attention; `None` if a context is never longer than what it chooses.
fn indexer(
    config: &CheckedConfig<'_>,
    (attention, context_max): (&AttentionSpec, usize),
) -> Result<Option<BlockIndexerSpec>> {
    let n_key_heads = config.width("indexer_kv_heads")?;
    if n_key_heads != 1 {
        return Err(config.text.unsupported("indexer_kv_heads", "only 1 is supported"));
    }
    let n_heads = config.width("indexer_n_heads")?;
    let head_dim = config.width("indexer_head_dim")?;
    config.fits(("indexer_n_heads", n_heads), ("indexer_head_dim", head_dim))?;
    if head_dim < attention.rope.n_rotated {
        let expected = format!("at least the {} rotated channels", attention.rope.n_rotated);
        return Err(config.text.wrong("indexer_head_dim", &expected));
    }
    let block = config.count("indexer_compress_ratio", N_CHOSEN_MAX)?;
    let n_chosen = config.count("indexer_budget", N_CHOSEN_MAX)?;
    config.divides(("indexer_compress_ratio", block), ("indexer_budget", n_chosen))?;
    let indexer = BlockIndexerSpec { n_heads, head_dim, n_blocks: n_chosen / block, block };
    // The positions after the last whole block are chosen as well.
    if context_max < n_chosen + block {
        return Ok(None);
    }
    indexer::check_context(config, context_max)?;
    Ok(Some(indexer))
}
