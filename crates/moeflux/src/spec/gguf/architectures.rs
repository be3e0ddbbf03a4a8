//! Translates the keys of each architecture into the config of its family.
//!
//! Keys and their defaults are those of llama.cpp, whose converters write them.

use serde_json::{Value as Json, json};

use super::keys::ArchitectureKeys;
use crate::error::Result;
use crate::format::{Checkpoint, MetadataValue};

/// An architecture whose family is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Qwen3Moe,
    Qwen3Next,
    Qwen35Moe,
    Deepseek2,
    Deepseek32,
    GlmDsa,
    Glm4Moe,
    GptOss,
    MinimaxM2,
    HyV3,
    Qwen3VlMoe,
    Qwen2Moe,
    Llama,
    Olmoe,
    Qwen2,
    Qwen3,
    Qwen35,
}

const NAMES: [(&str, Architecture); 17] = [
    ("qwen3moe", Architecture::Qwen3Moe),
    ("qwen3next", Architecture::Qwen3Next),
    ("qwen35moe", Architecture::Qwen35Moe),
    ("deepseek2", Architecture::Deepseek2),
    ("deepseek32", Architecture::Deepseek32),
    ("glm-dsa", Architecture::GlmDsa),
    ("glm4moe", Architecture::Glm4Moe),
    ("gpt-oss", Architecture::GptOss),
    ("minimax-m2", Architecture::MinimaxM2),
    ("hy_v3", Architecture::HyV3),
    ("qwen3vlmoe", Architecture::Qwen3VlMoe),
    ("qwen2moe", Architecture::Qwen2Moe),
    ("llama", Architecture::Llama),
    ("olmoe", Architecture::Olmoe),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("qwen35", Architecture::Qwen35),
];

/// Values of `expert_gating_func`.
pub(super) const SOFTMAX: u64 = 1;
pub(super) const SIGMOID: u64 = 2;
/// A softmax over only the selected logits equals one over all, normalised to sum to 1.
pub(super) const SOFTMAX_OF_CHOSEN: u64 = 3;

/// Precision of `mscale_all_dim`. Converters store a tenth of it in f32; further digits are
/// rounding errors.
const MSCALE_STEPS: f64 = 1e6;

/// Returns all names, for messages.
pub(super) fn known_names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

impl Architecture {
    pub(super) fn of_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, architecture)| *architecture)
    }

    /// Takes the keys of the file.
    pub(super) fn translate(
        self,
        keys: &mut ArchitectureKeys<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<()> {
        common_keys(keys, checkpoint)?;
        match self {
            Self::Deepseek2 | Self::Deepseek32 | Self::GlmDsa => {
                self.latent(keys, checkpoint)?;
            }
            _ => {
                attention(keys, checkpoint)?;
                self.with_attention(keys, checkpoint)?;
            }
        }
        rope(keys)?;
        if self == Self::GptOss {
            // GGUF has no key for this; the published models were trained without rounding.
            keys.set("rope_scaling.truncate", false);
        }
        Ok(())
    }

    fn latent(self, keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
        let pre = keys.metadata().text("tokenizer.ggml.pre");
        let model_type = match (self, pre) {
            (Self::Deepseek32, _) => "deepseek_v32",
            (Self::GlmDsa, _) => "glm_moe_dsa",
            (_, Some("kimi-k2")) => "kimi_k2",
            (_, Some("glm4")) => "glm4_moe_lite",
            _ => "deepseek_v3",
        };
        keys.set("model_type", model_type);
        if self != Self::Deepseek2 {
            indexer(keys, checkpoint)?;
        }
        keys.set("attention_bias", checkpoint.tensors.contains_key(KV_BIAS));
        mla(keys)?;
        sigmoid_experts(keys, if self == Self::GlmDsa { SIGMOID } else { SOFTMAX })
    }

    /// Translates the keys of architectures without experts.
    fn dense(self, keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
        match self {
            Self::Qwen35 => {
                keys.set("model_type", "qwen3_5_text");
                delta(keys)?;
            }
            Self::Qwen3 => keys.set("model_type", "qwen3"),
            _ => {
                keys.set("model_type", "qwen2");
                keys.set("qkv_bias", checkpoint.tensors.contains_key(Q_BIAS));
            }
        }
        without_experts(keys)
    }

    /// Translates the keys that differ between architectures with grouped-query attention.
    fn with_attention(
        self,
        keys: &mut ArchitectureKeys<'_>,
        checkpoint: &Checkpoint,
    ) -> Result<()> {
        let shared_inner = "expert_shared_feed_forward_length";
        match self {
            Self::Qwen3Moe | Self::Qwen3VlMoe => {
                let is_vl = self == Self::Qwen3VlMoe;
                keys.set("model_type", if is_vl { "qwen3_vl_moe_text" } else { "qwen3_moe" });
                keys.skip(&[shared_inner, "n_deepstack_layers"]);
                softmax_experts(keys, ExpertWeightDefault::Normalised)
            }
            Self::Qwen3Next | Self::Qwen35Moe => {
                let is_next = self == Self::Qwen3Next;
                keys.set("model_type", if is_next { "qwen3_next" } else { "qwen3_5_moe_text" });
                delta(keys)?;
                keys.copy("shared_expert_intermediate_size", shared_inner)?;
                keys.skip(&["expert_shared_count"]);
                softmax_experts(keys, ExpertWeightDefault::Normalised)
            }
            Self::Qwen2Moe => {
                keys.set("model_type", "qwen2_moe");
                keys.set("qkv_bias", checkpoint.tensors.contains_key(Q_BIAS));
                keys.copy("shared_expert_intermediate_size", shared_inner)?;
                keys.skip(&["expert_shared_count"]);
                softmax_experts(keys, ExpertWeightDefault::Plain)
            }
            Self::Llama => llama(keys, checkpoint),
            Self::Olmoe => {
                keys.set("model_type", "olmoe");
                softmax_experts(keys, ExpertWeightDefault::Plain)
            }
            Self::Qwen2 | Self::Qwen3 | Self::Qwen35 => self.dense(keys, checkpoint),
            Self::GptOss => {
                keys.set("model_type", "gpt_oss");
                keys.copy("sliding_window", "attention.sliding_window")?;
                keys.copy("intermediate_size", "expert_feed_forward_length")?;
                softmax_experts(keys, ExpertWeightDefault::Normalised)
            }
            Self::MinimaxM2 => {
                keys.set("model_type", "minimax_m2");
                check_gate(keys, &[SIGMOID], SIGMOID)?;
                keys.copy("intermediate_size", "expert_feed_forward_length")?;
                experts(keys)
            }
            Self::HyV3 => {
                keys.set("model_type", "hy_v3");
                check_gate(keys, &[SIGMOID], SIGMOID)?;
                keys.copy_or("route_norm", "expert_weights_norm", true.into())?;
                keys.copy_or("router_scaling_factor", "expert_weights_scale", json!(1.0))?;
                hy_layers(keys, checkpoint)?;
                experts(keys)
            }
            Self::Glm4Moe => {
                keys.set("model_type", "glm4_moe");
                keys.set("use_qk_norm", checkpoint.tensors.contains_key(Q_NORM));
                sigmoid_experts(keys, SIGMOID)
            }
            Self::Deepseek2 | Self::Deepseek32 | Self::GlmDsa => {
                unreachable!("their attention is latent")
            }
        }
    }
}

const Q_BIAS: &str = "model.layers.0.self_attn.q_proj.bias";
pub(super) const OUT_BIAS: &str = "model.layers.0.self_attn.o_proj.bias";
const FFN_BIAS: &str = "model.layers.0.mlp.gate_proj.bias";
const Q_NORM: &str = "model.layers.0.self_attn.q_norm.weight";
const KV_BIAS: &str = "model.layers.0.self_attn.kv_a_proj_with_mqa.bias";

/// Translates the keys that all architectures share.
fn common_keys(keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
    let n_layers = keys.count("block_count")?;
    let n_predicting = keys.count_opt("nextn_predict_layers")?.unwrap_or(0);
    // The block count includes layers for multi-token prediction.
    keys.set_from("num_hidden_layers", "block_count", n_layers.saturating_sub(n_predicting));
    keys.copy("max_position_embeddings", "context_length")?;
    keys.copy("hidden_size", "embedding_length")?;
    keys.copy_opt("intermediate_size", "feed_forward_length")?;
    keys.copy("rms_norm_eps", "attention.layer_norm_rms_epsilon")?;
    let tokens = keys.metadata().get("tokenizer.ggml.tokens");
    match (keys.value("vocab_size")?, tokens) {
        (Some(n_tokens), _) => keys.set_from("vocab_size", "vocab_size", n_tokens),
        (None, Some(MetadataValue::Strings(tokens))) => keys.set("vocab_size", tokens.len()),
        _ => return Err(keys.missing("vocab_size")),
    }
    keys.set("tie_word_embeddings", !checkpoint.tensors.contains_key("lm_head.weight"));
    let end = |key| keys.metadata().count(key);
    let ends = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let mut ends: Vec<u64> = ends.into_iter().filter_map(end).collect();
    ends.dedup();
    keys.set("eos_token_id", ends);
    if keys.value("attention.causal")?.is_some_and(|it| it != Json::Bool(true)) {
        return Err(keys.refused("attention.causal", "only causal attention is supported"));
    }
    Ok(())
}

/// Translates grouped-query attention.
fn attention(keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
    let n_heads = keys.count("attention.head_count")?;
    keys.set_from("num_attention_heads", "attention.head_count", n_heads);
    keys.copy_or("num_key_value_heads", "attention.head_count_kv", n_heads.into())?;
    let width = keys.count_opt("attention.key_length")?;
    let value_width = keys.count_opt("attention.value_length")?;
    if value_width != width && value_width.is_some() {
        let advice = "different widths of values and keys are not supported";
        return Err(keys.refused("attention.value_length", advice));
    }
    if let Some(width) = width {
        keys.set_from("head_dim", "attention.key_length", width);
    }
    keys.set("attention_bias", checkpoint.tensors.contains_key(Q_BIAS));
    let hidden = keys.count("embedding_length")?;
    let width = width.unwrap_or_else(|| hidden.checked_div(n_heads).unwrap_or(0));
    let n_rotated = keys.count_opt("rope.dimension_count")?.unwrap_or(width);
    // Half a channel is added, so that the product with the width rounds down to the exact count.
    let factor = (n_rotated as f64 + 0.5) / width.max(1) as f64;
    keys.set_from("partial_rotary_factor", "rope.dimension_count", factor);
    Ok(())
}

/// Translates gated DeltaNet and the layers that have it.
fn delta(keys: &mut ArchitectureKeys<'_>) -> Result<()> {
    keys.copy("linear_conv_kernel_dim", "ssm.conv_kernel")?;
    keys.copy("linear_key_head_dim", "ssm.state_size")?;
    keys.copy("linear_num_key_heads", "ssm.group_count")?;
    let n_heads = keys.count("ssm.time_step_rank")?;
    keys.set_from("linear_num_value_heads", "ssm.time_step_rank", n_heads);
    let width = keys.count("ssm.inner_size")?;
    if n_heads == 0 || !width.is_multiple_of(n_heads) {
        let advice = "it should be a multiple of the number of heads, `ssm.time_step_rank`";
        return Err(keys.refused("ssm.inner_size", advice));
    }
    keys.set_from("linear_value_head_dim", "ssm.inner_size", width / n_heads);
    keys.copy_opt("full_attention_interval", "full_attention_interval")?;
    let n_layers = keys.count("block_count")?;
    let n_predicting = keys.count_opt("nextn_predict_layers")?.unwrap_or(0);
    if let Some(recurrent) = keys.bools_opt("attention.recurrent_layers")? {
        let n_layers = usize::try_from(n_layers.saturating_sub(n_predicting)).unwrap_or(usize::MAX);
        let name = |is_recurrent: &bool| match is_recurrent {
            true => "linear_attention",
            false => "full_attention",
        };
        let kinds: Vec<&str> = recurrent.iter().take(n_layers).map(name).collect();
        keys.set_from("layer_types", "attention.recurrent_layers", kinds);
    }
    Ok(())
}

/// Translates multi-head latent attention. Older files have the widths of heads under keys that
/// hold the widths of the latent in newer ones.
fn mla(keys: &mut ArchitectureKeys<'_>) -> Result<()> {
    keys.copy("num_attention_heads", "attention.head_count")?;
    keys.copy_opt("q_lora_rank", "attention.q_lora_rank")?;
    keys.copy("kv_lora_rank", "attention.kv_lora_rank")?;
    let n_rotated = keys.count("rope.dimension_count")?;
    keys.set_from("qk_rope_head_dim", "rope.dimension_count", n_rotated);
    let (k_key, v_key) = match keys.count_opt("attention.key_length_mla")? {
        Some(_) => ("attention.key_length_mla", "attention.value_length_mla"),
        None => ("attention.key_length", "attention.value_length"),
    };
    let width = keys.count(k_key)?;
    keys.set_from("qk_nope_head_dim", k_key, width.saturating_sub(n_rotated));
    keys.copy("v_head_dim", v_key)?;
    keys.skip(&["attention.head_count_kv", "attention.key_length", "attention.value_length"]);
    Ok(())
}

/// Translates llama, or mixtral if there are experts, which have the width of a dense layer.
fn llama(keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
    if keys.count_opt("expert_count")?.unwrap_or(0) > 0 {
        keys.set("model_type", "mixtral");
        return softmax_experts(keys, ExpertWeightDefault::Normalised);
    }
    keys.set("model_type", "llama");
    keys.set("mlp_bias", checkpoint.tensors.contains_key(FFN_BIAS));
    without_experts(keys)
}

/// Refuses experts in an architecture whose layers have none.
fn without_experts(keys: &mut ArchitectureKeys<'_>) -> Result<()> {
    for key in ["expert_count", "expert_used_count"] {
        if keys.count_opt(key)?.is_some_and(|n_experts| n_experts > 0) {
            return Err(keys.refused(key, "experts are not supported for this architecture"));
        }
    }
    Ok(())
}

/// The default of llama.cpp for the weights of experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpertWeightDefault {
    Normalised,
    Plain,
}

/// Translates counts and widths of routed experts.
fn experts(keys: &mut ArchitectureKeys<'_>) -> Result<()> {
    keys.copy("num_experts", "expert_count")?;
    keys.copy("num_experts_per_tok", "expert_used_count")?;
    keys.copy_opt("moe_intermediate_size", "expert_feed_forward_length")?;
    Ok(())
}

/// Maximum kinds of layers that are listed: a false number cannot inflate the list. No model has
/// more layers.
const N_KINDS_MAX: u64 = 4096;

/// Translates the indexer of sparse attention. A layer without its tensors shares the choice of a
/// layer below; the key `types` says the same.
fn indexer(keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
    keys.copy("index_topk", "attention.indexer.top_k")?;
    keys.copy("index_n_heads", "attention.indexer.head_count")?;
    keys.copy("index_head_dim", "attention.indexer.key_length")?;
    let kind = |layer: u64| {
        let tensor = format!("model.layers.{layer}.self_attn.indexer.wk.weight");
        if checkpoint.tensors.contains_key(&tensor) { "full" } else { "shared" }
    };
    let n_layers = keys.count("block_count")?;
    let kinds: Vec<&str> = (0..n_layers.min(N_KINDS_MAX)).map(kind).collect();
    keys.set("indexer_types", json!(kinds));
    keys.skip(&["attention.indexer.types"]);
    Ok(())
}

/// Translates the dense layers and the shared expert of hy_v3. Some files lack the keys.
fn hy_layers(keys: &mut ArchitectureKeys<'_>, checkpoint: &Checkpoint) -> Result<()> {
    let is_dense = |layer: &u64| {
        !checkpoint.tensors.contains_key(&format!("model.layers.{layer}.mlp.gate.weight"))
    };
    let n_layers = keys.count("block_count")?;
    let n_dense = (0..n_layers).take_while(is_dense).count();
    keys.copy_or("first_k_dense_replace", "leading_dense_block_count", json!(n_dense))?;
    let inner = keys.count("expert_feed_forward_length")?;
    let key = "expert_shared_feed_forward_length";
    let shared = keys.count_opt(key)?.unwrap_or(inner);
    if inner == 0 || !shared.is_multiple_of(inner) {
        let advice = "it should be a multiple of `expert_feed_forward_length`";
        return Err(keys.refused(key, advice));
    }
    keys.set_from("num_shared_experts", key, shared / inner);
    keys.skip(&["expert_shared_count"]);
    Ok(())
}

/// Translates experts with a softmax router.
fn softmax_experts(keys: &mut ArchitectureKeys<'_>, default: ExpertWeightDefault) -> Result<()> {
    check_gate(keys, &[SOFTMAX, SOFTMAX_OF_CHOSEN], SOFTMAX)?;
    experts(keys)?;
    let is_normalised = default == ExpertWeightDefault::Normalised;
    keys.copy_or("norm_topk_prob", "expert_weights_norm", is_normalised.into())?;
    for key in ["expert_group_count", "expert_group_used_count", "leading_dense_block_count"] {
        if keys.count_opt(key)?.is_some_and(|n| n > 1 || key.starts_with("leading") && n > 0) {
            return Err(keys.refused(key, "it is not supported for this architecture"));
        }
    }
    if keys.number_opt("expert_weights_scale")?.is_some_and(|scale| !is_one(scale) && scale != 0.0)
    {
        let advice = "scaled weights of experts are not supported for this architecture";
        return Err(keys.refused("expert_weights_scale", advice));
    }
    Ok(())
}

/// Translates experts with a sigmoid router, a correction bias and groups.
fn sigmoid_experts(keys: &mut ArchitectureKeys<'_>, default_gate: u64) -> Result<()> {
    check_gate(keys, &[SIGMOID], default_gate)?;
    let n_experts = keys.count("expert_count")?;
    keys.set_from("n_routed_experts", "expert_count", n_experts);
    keys.copy("num_experts_per_tok", "expert_used_count")?;
    keys.copy("moe_intermediate_size", "expert_feed_forward_length")?;
    keys.copy_or("norm_topk_prob", "expert_weights_norm", false.into())?;
    keys.copy_or("routed_scaling_factor", "expert_weights_scale", json!(1.0))?;
    keys.copy_or("n_shared_experts", "expert_shared_count", json!(0))?;
    keys.copy_or("first_k_dense_replace", "leading_dense_block_count", json!(0))?;
    // Older files lack groups: of the published models only DeepSeek V3 and R1 have them.
    let has_groups = default_gate == SOFTMAX && n_experts == 256;
    let (n_groups, n_kept) = if has_groups { (8, 4) } else { (1, 1) };
    keys.copy_or("n_group", "expert_group_count", json!(n_groups))?;
    keys.copy_or("topk_group", "expert_group_used_count", json!(n_kept))?;
    keys.skip(&["expert_shared_feed_forward_length"]);
    Ok(())
}

/// Returns whether a factor is exactly 1, as files have it for unscaled values.
fn is_one(factor: f64) -> bool {
    factor.to_bits() == 1_f64.to_bits()
}

fn check_gate(keys: &mut ArchitectureKeys<'_>, known: &[u64], default: u64) -> Result<()> {
    let key = "expert_gating_func";
    let gate = keys.count_opt(key)?.filter(|gate| *gate != 0).unwrap_or(default);
    if known.contains(&gate) {
        return Ok(());
    }
    let name = if known.contains(&SIGMOID) { "2 (sigmoid)" } else { "1 (softmax)" };
    let advice = format!("is {gate}; only {name} is supported for this architecture");
    Err(keys.refused(key, &advice))
}

/// Translates the rope and its scaling.
fn rope(keys: &mut ArchitectureKeys<'_>) -> Result<()> {
    keys.copy_or("rope_theta", "rope.freq_base", json!(10_000.0))?;
    let kind = keys.text_opt("rope.scaling.type")?;
    let multiplier = keys.number_opt("rope.scaling.yarn_log_multiplier")?;
    match kind {
        None | Some("none") => {}
        Some("linear" | "yarn") => {
            keys.set_from("rope_scaling.rope_type", "rope.scaling.type", kind);
            keys.copy("rope_scaling.factor", "rope.scaling.factor")?;
        }
        Some(_) => {
            let advice = "only \"none\", \"linear\" and \"yarn\" are supported";
            return Err(keys.refused("rope.scaling.type", advice));
        }
    }
    if kind == Some("yarn") {
        for (config_key, key) in [
            ("rope_scaling.original_max_position_embeddings", "original_context_length"),
            ("rope_scaling.beta_fast", "yarn_beta_fast"),
            ("rope_scaling.beta_slow", "yarn_beta_slow"),
            ("rope_scaling.attention_factor", "yarn_attn_factor"),
        ] {
            keys.copy_opt(config_key, &format!("rope.scaling.{key}"))?;
        }
        if let Some(multiplier) = multiplier {
            // In the published models `mscale` has the same value.
            let mscale = (multiplier * 10.0 * MSCALE_STEPS).round() / MSCALE_STEPS;
            let key = "rope.scaling.yarn_log_multiplier";
            keys.set_from("rope_scaling.mscale_all_dim", key, mscale);
            keys.set_from("rope_scaling.mscale", key, mscale);
        }
    } else {
        keys.skip(&["rope.scaling.factor", "rope.scaling.original_context_length"]);
    }
    for key in ["rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor"] {
        if keys.number_opt(key)?.is_some_and(|factor| !is_one(factor)) {
            return Err(keys.refused(key, "only 1 is supported"));
        }
    }
    Ok(())
}
