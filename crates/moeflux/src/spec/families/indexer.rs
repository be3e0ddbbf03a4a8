//! The indexers of sparse attention: `deepseek_v32` has one in each layer; in `glm_moe_dsa`, layers
//! may share the choice of a layer below.

use crate::error::Result;
use crate::spec::config::CheckedConfig;
use crate::spec::{Family, IndexerSpec, MlaSpec, Pairing, PositionChoice};

/// Upper bound on chosen positions: each row of a step has a list of them. Published models choose
/// 2,048.
pub(super) const N_CHOSEN_MAX: usize = 1 << 16;
/// Upper bound on heads: a thousand times the largest known number.
const N_HEADS_MAX: usize = 1 << 16;

/// Upper bound on a context in which positions are chosen: lists hold positions as floats, which
/// represent each of these.
const N_POSITIONS_MAX: usize = 1 << 24;

/// What the config of a family says about layers without an own choice.
const FULL: &str = "full";
const SHARED: &str = "shared";

/// Returns the choice of positions of each layer: `None` if a context is never longer than what an
/// indexer chooses.
pub(super) fn choices(
    config: &CheckedConfig<'_>,
    family: Family,
    mla: &MlaSpec,
    (n_layers, context_max): (usize, usize),
) -> Result<Vec<Option<PositionChoice>>> {
    let (n_heads, pairing) = match family {
        Family::DeepseekV32 => (64, Pairing::Halves),
        Family::GlmMoeDsa => (32, Pairing::Neighbours),
        _ => return Ok(vec![None; n_layers]),
    };
    let n_chosen = config.count_or("index_topk", 2048, N_CHOSEN_MAX)?;
    let n_heads = config.count_or("index_n_heads", n_heads, N_HEADS_MAX)?;
    let head_dim = config.width_or("index_head_dim", 128)?;
    config.fits(("index_n_heads", n_heads), ("index_head_dim", head_dim))?;
    if head_dim < mla.rope_dim {
        let expected = format!("at least `qk_rope_head_dim`, {}", mla.rope_dim);
        return Err(config.text.wrong("index_head_dim", &expected));
    }
    let Some(q_rank) = mla.q_rank else {
        return Err(config.text.wrong("q_lora_rank", "a rank, which the indexer needs"));
    };
    let own = match family {
        Family::GlmMoeDsa => own_choices(config, n_layers)?,
        _ => vec![true; n_layers],
    };
    if context_max <= n_chosen {
        return Ok(vec![None; n_layers]);
    }
    check_context(config, context_max)?;
    let spec = IndexerSpec { n_heads, head_dim, q_rank, pairing, n_chosen };
    let choice = |is_own| match is_own {
        true => PositionChoice::Own(spec),
        false => PositionChoice::Shared { n_chosen },
    };
    Ok(own.into_iter().map(|is_own| Some(choice(is_own))).collect())
}

/// Refuses a context with positions that a list cannot hold.
pub(super) fn check_context(config: &CheckedConfig<'_>, context_max: usize) -> Result<()> {
    if context_max <= N_POSITIONS_MAX {
        return Ok(());
    }
    let expected = format!("at most {N_POSITIONS_MAX} with an indexer");
    Err(config.text.wrong("max_position_embeddings", &expected))
}

/// Returns whether each layer has an own indexer: from `indexer_types`, otherwise from a pattern or
/// a frequency, as in transformers.
fn own_choices(config: &CheckedConfig<'_>, n_layers: usize) -> Result<Vec<bool>> {
    let text = &config.text;
    let (key, own) = if text.value("indexer_types").is_some() {
        ("indexer_types", listed(config, "indexer_types")?)
    } else if text.value("index_topk_pattern").is_some() {
        let key = "index_topk_pattern";
        let is_word = text.value(key).is_some_and(|value| value.is_string());
        (key, if is_word { spelled(config, key)? } else { listed(config, key)? })
    } else {
        let frequency = text.usize_opt("index_topk_freq")?.unwrap_or(1).max(1);
        let offset = text.usize_opt("index_skip_topk_offset")?.unwrap_or(2);
        let is_own = |layer: usize| (layer + 1).saturating_sub(offset).is_multiple_of(frequency);
        ("index_topk_freq", (0..n_layers).map(is_own).collect())
    };
    // Lists of published models may also name layers for multi-token prediction.
    if own.len() < n_layers {
        return Err(text.wrong(key, &format!("a kind for each of the {n_layers} layers")));
    }
    if own.first() == Some(&false) {
        return Err(text.wrong(key, "an indexer in the first layer"));
    }
    Ok(own.into_iter().take(n_layers).collect())
}

fn listed(config: &CheckedConfig<'_>, key: &str) -> Result<Vec<bool>> {
    let is_own = |kind: &str| match kind {
        FULL => Ok(true),
        SHARED => Ok(false),
        _ => Err(config.text.wrong(key, "\"full\" or \"shared\" for each layer")),
    };
    config.text.str_list_opt(key)?.unwrap_or_default().into_iter().map(is_own).collect()
}

fn spelled(config: &CheckedConfig<'_>, key: &str) -> Result<Vec<bool>> {
    let is_own = |letter: char| match letter {
        'F' => Ok(true),
        'S' => Ok(false),
        _ => Err(config.text.wrong(key, "a word of the letters F and S, one for each layer")),
    };
    config.text.str_opt(key)?.unwrap_or_default().chars().map(is_own).collect()
}
