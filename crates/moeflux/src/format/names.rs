//! Maps the tensor names of publishers to canonical names.
//!
//! **Invariant:** a name that matches no rule is unchanged, so that an unexpected tensor is refused
//! under the name in its file.

use std::borrow::Cow;

/// Parts of published names, and their canonical forms. A part that ends with a full stop matches
/// anywhere in a name; the others match only at its end.
const PARTS: [(&str, &str); 7] = [
    // mixtral and minimax_m2.
    (".block_sparse_moe.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    (".block_sparse_moe.", ".mlp."),
    // hy_v3.
    (".mlp.router.gate.", ".mlp.gate."),
    (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"),
    (".mlp.shared_mlp.", ".mlp.shared_experts."),
    // As transformers names it within a model.
    (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    // gpt_oss.
    (".mlp.router.", ".mlp.gate."),
];

/// The matrices of an expert of mixtral and minimax_m2. The name follows the expert's number.
const OF_EXPERT: [(&str, &str); 3] =
    [("w1.", "gate_proj."), ("w2.", "down_proj."), ("w3.", "up_proj.")];

/// Returns the name that a tensor has in a checkpoint of the language model alone:
/// `model.layers.0...`, `model.embed_tokens.weight`, `model.norm.weight`, `lm_head.weight`.
#[must_use]
pub(crate) fn canonical_name(name: &str) -> Cow<'_, str> {
    let name = match name.strip_prefix("model.language_model.") {
        Some(rest) => Cow::Owned(format!("model.{rest}")),
        None => Cow::Borrowed(name.strip_prefix("language_model.").unwrap_or(name)),
    };
    let renamed = PARTS.iter().find_map(|(part, own)| with_part(&name, part, own));
    let name = renamed.map_or(name, Cow::Owned);
    match with_matrix(&name) {
        Some(renamed) => Cow::Owned(renamed),
        None => name,
    }
}

/// Returns the canonical name of a module: that of its tensor `weight`, without the suffix.
#[must_use]
pub(crate) fn canonical_module(name: &str) -> String {
    // Some parts match only where a tensor's name goes on.
    let tensor = format!("{name}.weight");
    let canonical = canonical_name(&tensor);
    canonical.strip_suffix(".weight").unwrap_or(name).to_owned()
}

fn with_part(name: &str, part: &str, own: &str) -> Option<String> {
    let (before, after) = name.split_once(part)?;
    let is_whole = part.ends_with('.') || after.is_empty();
    is_whole.then(|| format!("{before}{own}{after}"))
}

fn with_matrix(name: &str) -> Option<String> {
    let (before, after) = name.split_once(".mlp.experts.")?;
    let (expert, matrix) = after.split_once('.')?;
    let (part, own) = OF_EXPERT.iter().find(|(part, _)| matrix.starts_with(part))?;
    let rest = matrix.strip_prefix(part)?;
    Some(format!("{before}.mlp.experts.{expert}.{own}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_wrappers_become_those_of_the_language_model() {
        for (name, expected) in [
            ("language_model.model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("model.layers.0.x", "model.layers.0.x"),
            ("model.visual.x", "model.visual.x"),
            ("lm_head.weight", "lm_head.weight"),
            ("mtp.norm.weight", "mtp.norm.weight"),
        ] {
            assert_eq!(canonical_name(name), expected);
        }
    }

    #[test]
    fn names_of_other_publishers_become_ours() {
        for (name, expected) in [
            ("block_sparse_moe.gate.weight", "mlp.gate.weight"),
            ("block_sparse_moe.experts.12.w1.weight", "mlp.experts.12.gate_proj.weight"),
            (
                "block_sparse_moe.experts.0.w3.weight_scale_inv",
                "mlp.experts.0.up_proj.weight_scale_inv",
            ),
            ("block_sparse_moe.experts.0.w2.weight", "mlp.experts.0.down_proj.weight"),
            ("block_sparse_moe.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
            ("block_sparse_moe.switch_mlp.up_proj.scales", "mlp.switch_mlp.up_proj.scales"),
            ("mlp.router.gate.weight", "mlp.gate.weight"),
            ("mlp.expert_bias", "mlp.gate.e_score_correction_bias"),
            ("mlp.shared_mlp.up_proj.weight", "mlp.shared_experts.up_proj.weight"),
            ("mlp.router.bias", "mlp.gate.bias"),
            ("mlp.experts.down_proj_bias", "mlp.experts.down_proj_bias"),
            ("mlp.experts.gate_up_proj_blocks", "mlp.experts.gate_up_proj_blocks"),
            ("mlp.experts.down_proj", "mlp.experts.down_proj"),
            ("mlp.experts.7.w1.scale", "mlp.experts.7.gate_proj.scale"),
        ] {
            let name = format!("model.layers.3.{name}");
            assert_eq!(canonical_name(&name), format!("model.layers.3.{expected}"));
        }
    }

    #[test]
    fn modules_have_the_names_of_their_tensors() {
        for (name, expected) in [
            ("model.layers.0.mlp.router", "model.layers.0.mlp.gate"),
            ("language_model.model.layers.0.mlp.gate", "model.layers.0.mlp.gate"),
            ("model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate"),
            ("lm_head", "lm_head"),
        ] {
            assert_eq!(canonical_module(name), expected);
        }
    }
}
