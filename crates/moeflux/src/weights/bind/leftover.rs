//! Decides which tensors of a checkpoint may stay unused, and reports the others as errors.
//!
//! **Invariant:** nothing is skipped except by a rule in this file: an unknown tensor means that
//! the model would be computed wrongly.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crate::error::{Error, Result};
use crate::format::{Checkpoint, TensorEntry};
use crate::spec::{Family, LayerSpec, MixerSpec, ModelSpec, PositionChoice};
use crate::weights::manifest::{SkipReason, SkippedGroup};

/// Upper bound on layers after the last that predict further tokens; published models have one.
const MTP_LAYERS_MAX: usize = 8;

/// Name prefixes of image encoders and of heads that predict further tokens.
const PREFIXES: [(&str, SkipReason); 8] = [
    ("model.visual.", SkipReason::Vision),
    ("visual.", SkipReason::Vision),
    ("vision_tower.", SkipReason::Vision),
    ("multi_modal_projector.", SkipReason::Vision),
    ("mm_projector.", SkipReason::Vision),
    ("model.mtp.", SkipReason::Mtp),
    ("mtp.", SkipReason::Mtp),
    ("model.vision_tower.", SkipReason::Vision),
];

/// Groups the tensors that were not taken.
pub(super) fn skipped(
    checkpoint: &Checkpoint,
    taken: &HashSet<&str>,
    spec: &ModelSpec,
) -> Result<Vec<SkippedGroup>> {
    let tensors = &checkpoint.tensors;
    for (prefix, (_, bank)) in checkpoint.packed.iter().flat_map(|packed| &packed.banks) {
        if !taken.contains(prefix.as_str()) {
            let problem = "holds experts for a layer without experts in config.json: config.json \
                           may belong to another model";
            return Err(Error::tensor(&bank.tensor, problem));
        }
    }
    for (table, (_, rows)) in checkpoint.packed.iter().flat_map(|packed| &packed.tables) {
        if !taken.contains(table.as_str()) {
            let problem = "holds rows of a table that config.json does not describe: config.json \
                           may belong to another model";
            return Err(Error::tensor(&rows.tensor, problem));
        }
    }
    let mtp_layers = mtp_layers(tensors, spec);
    let mut groups: BTreeMap<(SkipReason, String), SkippedGroup> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (name, entry) in tensors.iter().filter(|(name, _)| !taken.contains(name.as_str())) {
        let Some((reason, pattern)) = rule_for(name, &mtp_layers, spec) else {
            unknown.push(entry);
            continue;
        };
        let group = groups.entry((reason, pattern.clone()));
        let group = group.or_insert(SkippedGroup { reason, pattern, n_tensors: 0, n_bytes: 0 });
        group.n_tensors += 1;
        group.n_bytes += entry.len_bytes;
    }
    match unknown.as_slice() {
        [] => Ok(groups.into_values().collect()),
        [first, others @ ..] => {
            let is_used = |(name, entry): (&String, &TensorEntry)| {
                entry.file_idx == first.file_idx && taken.contains(name.as_str())
            };
            let is_stray = !tensors.iter().any(is_used);
            Err(left_over(checkpoint, (first, others.len()), is_stray))
        }
    }
}

/// Returns the error about unknown tensors. `is_stray`: no tensor of the file is used.
fn left_over(
    checkpoint: &Checkpoint,
    (first, n_others): (&TensorEntry, usize),
    is_stray: bool,
) -> Error {
    let and_others = match n_others {
        0 => String::new(),
        n => format!(" ({n} more like it)"),
    };
    let path = checkpoint.files.get(first.file_idx).map(|file| file.path.as_path());
    let file = path.and_then(Path::file_name).unwrap_or_default().display();
    let advice = if is_stray {
        "nor is any other tensor of that file: remove the file if it does not belong to this model"
    } else {
        "without it the model would be computed wrongly"
    };
    Error::tensor(
        &first.name,
        format!(
            "in `{file}`, of shape {:?}, is not part of the model that {} describes{and_others}: \
             {advice}",
            first.shape,
            checkpoint.described_by()
        ),
    )
}

fn rule_for(name: &str, mtp_layers: &[String], spec: &ModelSpec) -> Option<(SkipReason, String)> {
    for (prefix, reason) in PREFIXES {
        if name.starts_with(prefix) {
            return Some((reason, format!("{prefix}*")));
        }
    }
    if let Some(prefix) = mtp_layers.iter().find(|prefix| name.starts_with(prefix.as_str())) {
        return Some((SkipReason::Mtp, format!("{prefix}*")));
    }
    if name.ends_with(".rotary_emb.inv_freq") {
        return Some((SkipReason::Derived, "*.rotary_emb.inv_freq".to_owned()));
    }
    if is_of_unused_indexer(name, spec) {
        return Some((SkipReason::Indexer, "*.self_attn.indexer.*".to_owned()));
    }
    // Shapes of packed integers, which were compared; those of packed records serve no other
    // purpose.
    if name.ends_with(".weight_shape") {
        return Some((SkipReason::Derived, "*.weight_shape".to_owned()));
    }
    if spec.tied_embeddings && name.starts_with("lm_head.") {
        return Some((SkipReason::Derived, "lm_head.*".to_owned()));
    }
    None
}

/// Returns whether a tensor belongs to an indexer in a layer that has no choice of its own: each
/// position is chosen, or the choice is that of a layer below.
fn is_of_unused_indexer(name: &str, spec: &ModelSpec) -> bool {
    let has_indexer =
        matches!(spec.family, Family::GlmMoeDsa | Family::DeepseekV32 | Family::Qwen4Exp);
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, rest)) = layer.filter(|_| has_indexer) else { return false };
    let layer = layer.parse().ok().and_then(|layer_idx: usize| spec.layers.get(layer_idx));
    let is_own = |layer: &LayerSpec| match &layer.mixer {
        MixerSpec::Mla(mla) => matches!(mla.choice, Some(PositionChoice::Own(_))),
        _ => false,
    };
    rest.starts_with("self_attn.indexer.") && layer.is_some_and(|layer| !is_own(layer))
}

/// Returns the prefixes of layers after the last that join a hidden state with an embedding
/// (`eh_proj`). Without that test, a config with too few layers would pass for such a checkpoint.
fn mtp_layers(tensors: &BTreeMap<String, TensorEntry>, spec: &ModelSpec) -> Vec<String> {
    let n_layers = spec.layers.len();
    (n_layers..n_layers + MTP_LAYERS_MAX)
        .map(|layer_idx| format!("model.layers.{layer_idx}."))
        .filter(|prefix| tensors.contains_key(&format!("{prefix}eh_proj.weight")))
        .collect()
}
