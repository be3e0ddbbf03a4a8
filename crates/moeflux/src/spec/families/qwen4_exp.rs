//! `qwen4_exp`: the layers of `qwen3_next` around several residual streams. Its attention is sparse
//! beyond the budget of its indexer, and some layers may add rows of n-grams.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::attention::{AttentionTraits, attention, gated_delta};
use crate::spec::config::CheckedConfig;
use crate::spec::families::qwen3_next::moe;
use crate::spec::streams::{GateFunction, N_STREAMS_MAX, StreamSpec};
use crate::spec::{AttentionBias, Family, GatedDeltaSpec, LayerSpec, MixerSpec, ModelSpec, QkNorm};

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<ModelSpec> {
    let common = CommonConfig::parse(config, 1e-6)?;
    let ffn = moe(config, config.flag_or("norm_topk_prob", true)?)?;
    let traits = AttentionTraits {
        has_gate: true,
        norm: QkNorm::Heads,
        ..AttentionTraits::plain(AttentionBias::QkvAndOut)
    };
    let full = MixerSpec::Attention(attention(config, &traits, common.hidden)?);
    let gate = gate(config)?;
    let linear = MixerSpec::GatedDelta(GatedDeltaSpec { gate, ..gated_delta(config)? });
    let is_full = is_full(config, common.n_layers)?;
    let streams = streams(config, common.hidden)?;
    let has_ngrams = config.text.usize_list_opt("ple_layer_ids")?.is_some_and(|it| !it.is_empty());
    if has_ngrams {
        let advice = "layers that add rows of n-grams are not supported yet";
        return Err(config.text.unsupported("ple_layer_ids", advice));
    }
    let layers = is_full.into_iter().map(|is_full| {
        let mixer = if is_full { full.clone() } else { linear.clone() };
        LayerSpec { mixer, ffn: ffn.clone() }
    });
    let spec = common.into_spec(Family::Qwen4Exp, layers.collect());
    let spec = ModelSpec { streams: Some(streams), ..spec };
    Ok(spec.limited_to(n_selected(config)?))
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

/// Returns the gate behind the norm of the linear layers.
fn gate(config: &CheckedConfig<'_>) -> Result<GateFunction> {
    let key = "output_gate_type";
    match config.text.str_opt(key)? {
        None | Some("silu") => Ok(GateFunction::Silu),
        Some("sigmoid") => Ok(GateFunction::Sigmoid),
        Some(_) => Err(config.text.wrong(key, "\"sigmoid\" or \"silu\"")),
    }
}

/// Returns the number of positions that the indexer selects. Each is in a block, of which only
/// whole ones are left out.
fn n_selected(config: &CheckedConfig<'_>) -> Result<usize> {
    let n_key_heads = config.width("indexer_kv_heads")?;
    if n_key_heads != 1 {
        return Err(config.text.unsupported("indexer_kv_heads", "only 1 is supported"));
    }
    let (n_heads, head_dim) = (config.width("indexer_n_heads")?, config.width("indexer_head_dim")?);
    config.fits(("indexer_n_heads", n_heads), ("indexer_head_dim", head_dim))?;
    let ratio = config.width("indexer_compress_ratio")?;
    let n_selected = config.width("indexer_budget")?;
    config.divides(("indexer_compress_ratio", ratio), ("indexer_budget", n_selected))?;
    Ok(n_selected)
}
