//! Maps tensor names of GGUF files to canonical names and back.
//!
//! **Invariant:** a name that is not in the table is unchanged, so that an unexpected tensor is
//! refused under the name in its file.

use std::borrow::Cow;

const OF_MODEL: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Suffixes after `blk.N.`, and after `model.layers.N.`.
const OF_LAYER: [(&str, &str); 62] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    (FFN_NORM, "post_attention_layernorm.weight"),
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q.bias", "self_attn.q_proj.bias"),
    ("attn_k.bias", "self_attn.k_proj.bias"),
    ("attn_v.bias", "self_attn.v_proj.bias"),
    ("attn_output.bias", "self_attn.o_proj.bias"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
    ("attn_q_a.bias", "self_attn.q_a_proj.bias"),
    ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
    ("attn_q_b.weight", "self_attn.q_b_proj.weight"),
    ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    ("attn_kv_a_mqa.bias", "self_attn.kv_a_proj_with_mqa.bias"),
    ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
    // Transposed per head, as in mlx-lm.
    ("attn_k_b.weight", "self_attn.embed_q.weight"),
    ("attn_v_b.weight", "self_attn.unembed_out.weight"),
    // Older files have this in place of the two above.
    ("attn_kv_b.weight", "self_attn.kv_b_proj.weight"),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    // Older files have these in place of the two above.
    ("ssm_in.weight", "linear_attn.in_proj_qkvz.weight"),
    ("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("ffn_gate.bias", "mlp.gate_proj.bias"),
    ("ffn_up.bias", "mlp.up_proj.bias"),
    ("ffn_down.bias", "mlp.down_proj.bias"),
    ("attn_sinks.weight", "self_attn.sinks"),
    ("indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"),
    ("indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
    ("indexer.proj.weight", "self_attn.indexer.weights_proj.weight"),
    ("indexer.attn_k.weight", "self_attn.indexer.wk.weight"),
    ("indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"),
    ("ffn_gate_inp.weight", "mlp.gate.weight"),
    ("ffn_gate_inp.bias", "mlp.gate.bias"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    // hy_v3.
    ("exp_probs_b", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_exps.bias", "mlp.switch_mlp.gate_proj.bias"),
    ("ffn_up_exps.bias", "mlp.switch_mlp.up_proj.bias"),
    ("ffn_down_exps.bias", "mlp.switch_mlp.down_proj.bias"),
    ("ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj.weight"),
    ("ffn_up_exps.weight", "mlp.switch_mlp.up_proj.weight"),
    ("ffn_down_exps.weight", "mlp.switch_mlp.down_proj.weight"),
    ("ffn_gate_up_exps.weight", "mlp.switch_mlp.gate_up_proj.weight"),
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
    ("ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"),
    // Marks a layer for multi-token prediction.
    ("nextn.eh_proj.weight", "eh_proj.weight"),
];

/// Some architectures use this name, others `post_attention_norm.weight`.
const FFN_NORM: &str = "ffn_norm.weight";
const WITH_FFN_NORM: [&str; 12] = [
    "qwen2",
    "qwen3",
    "qwen3moe",
    "qwen2moe",
    "qwen3vlmoe",
    "deepseek2",
    "deepseek32",
    "glm-dsa",
    "minimax-m2",
    "hy_v3",
    "llama",
    "olmoe",
];

/// The shared expert in families that gate it.
const GATED: &str = "mlp.shared_expert.";
const PLAIN: &str = "mlp.shared_experts.";

/// The tensors that a requantised matrix has besides its weights.
const PARTS: [&str; 2] = ["scales", "biases"];

/// Returns the canonical name of a tensor.
pub(crate) fn canonical<'n>(name: &'n str, architecture: &str) -> Cow<'n, str> {
    let base_and_part = name.rsplit_once('.').filter(|(_, part)| PARTS.contains(part));
    if let Some((base, part)) = base_and_part {
        let weight = format!("{base}.weight");
        let canonical = of_weight(&weight, architecture);
        let base = canonical.strip_suffix("weight").unwrap_or(&canonical);
        return Cow::Owned(format!("{base}{part}"));
    }
    of_weight(name, architecture)
}

fn of_weight<'n>(name: &'n str, architecture: &str) -> Cow<'n, str> {
    if let Some((_, canonical)) = OF_MODEL.iter().find(|(known, _)| *known == name) {
        return Cow::Borrowed(canonical);
    }
    let Some((layer, rest)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
    else {
        return Cow::Borrowed(name);
    };
    let canonical = OF_LAYER.iter().find(|(known, _)| *known == rest).map_or(rest, |row| row.1);
    let prefix = format!("model.layers.{layer}.");
    Cow::Owned(match canonical.strip_prefix(PLAIN) {
        Some(matrix) if architecture.starts_with("qwen") => format!("{prefix}{GATED}{matrix}"),
        _ => format!("{prefix}{canonical}"),
    })
}

/// Returns the name that a GGUF file has for a canonical name.
pub(crate) fn in_gguf<'n>(canonical: &'n str, architecture: &str) -> Cow<'n, str> {
    if let Some((name, _)) = OF_MODEL.iter().find(|(_, known)| *known == canonical) {
        return Cow::Borrowed(name);
    }
    let layer_and_rest = canonical.strip_prefix("model.layers.");
    let Some((layer, rest)) = layer_and_rest.and_then(|rest| rest.split_once('.')) else {
        return Cow::Borrowed(canonical);
    };
    let rest = match rest.strip_prefix(GATED) {
        Some(matrix) => Cow::Owned(format!("{PLAIN}{matrix}")),
        None => Cow::Borrowed(rest),
    };
    let has_ffn_norm = WITH_FFN_NORM.contains(&architecture);
    let known = OF_LAYER
        .iter()
        .filter(|(name, _)| has_ffn_norm || *name != FFN_NORM)
        .find(|(_, known)| *known == rest);
    Cow::Owned(format!("blk.{layer}.{}", known.map_or(&*rest, |row| row.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (name, architecture, expected) in [
            ("output.weight", "qwen3moe", "lm_head.weight"),
            ("blk.3.attn_q.weight", "qwen3moe", "model.layers.3.self_attn.q_proj.weight"),
            (
                "blk.61.ffn_up_shexp.weight",
                "qwen35moe",
                "model.layers.61.mlp.shared_expert.up_proj.weight",
            ),
            (
                "blk.61.ffn_up_shexp.weight",
                "deepseek2",
                "model.layers.61.mlp.shared_experts.up_proj.weight",
            ),
            ("blk.1.ffn_norm.weight", "qwen3moe", "model.layers.1.post_attention_layernorm.weight"),
            (
                "blk.1.post_attention_norm.weight",
                "glm4moe",
                "model.layers.1.post_attention_layernorm.weight",
            ),
            ("blk.0.nextn.enorm.weight", "glm4moe", "model.layers.0.nextn.enorm.weight"),
            ("rope_freqs.weight", "glm4moe", "rope_freqs.weight"),
        ] {
            assert_eq!(canonical(name, architecture), expected);
            assert_eq!(in_gguf(expected, architecture), name);
        }
    }

    #[test]
    fn parts_of_quantised_matrices_follow_their_weights() {
        for (name, expected) in [
            ("blk.3.ffn_up_shexp.scales", "model.layers.3.mlp.shared_expert.up_proj.scales"),
            ("blk.3.attn_qkv.biases", "model.layers.3.linear_attn.in_proj_qkv.biases"),
            ("token_embd.scales", "model.embed_tokens.scales"),
            ("other.scales", "other.scales"),
        ] {
            assert_eq!(canonical(name, "qwen35moe"), expected);
        }
    }
}
