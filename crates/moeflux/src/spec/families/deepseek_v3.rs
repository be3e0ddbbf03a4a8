//! `deepseek_v3` and related families, which differ in the defaults of their configs: multi-head
//! latent attention, grouped sigmoid routing, dense first layers.

use crate::error::Result;
use crate::spec::common::CommonConfig;
use crate::spec::common::experts;
use crate::spec::common::rope::{self, RopeDefaults};
use crate::spec::config::CheckedConfig;
use crate::spec::families::indexer;
use crate::spec::{
    Activation, Family, FfnSpec, LayerSpec, MixerSpec, MlaSpec, ModelSpec, MoeSpec, Pairing,
    RouterSpec, SharedExpertSpec,
};

/// Defaults of the families with this router, for keys that the config omits.
pub(super) struct RouterDefaults {
    pub(super) n_groups: usize,
    pub(super) n_groups_kept: usize,
    pub(super) factor: f64,
    pub(super) n_dense_layers: usize,
}

const DEEPSEEK: RouterDefaults =
    RouterDefaults { n_groups: 8, n_groups_kept: 4, factor: 2.5, n_dense_layers: 3 };
const GLM_DSA: RouterDefaults = RouterDefaults { n_groups: 1, n_groups_kept: 1, ..DEEPSEEK };
const GLM_LITE: RouterDefaults = RouterDefaults { factor: 1.8, n_dense_layers: 1, ..GLM_DSA };

pub(super) fn parse(config: &CheckedConfig<'_>, family: Family) -> Result<ModelSpec> {
    let (epsilon, defaults) = match family {
        Family::Glm4MoeLite => (1e-5, GLM_LITE),
        Family::GlmMoeDsa => (1e-5, GLM_DSA),
        _ => (1e-6, DEEPSEEK),
    };
    let common = CommonConfig::parse(config, epsilon)?;
    let mla = mla(config)?;
    let sizes = (common.n_layers, common.context_max);
    let choices = indexer::choices(config, family, &mla, sizes)?;
    let ffns = ffns(config, &defaults, common.n_layers)?;
    let layer = |(ffn, choice)| {
        let mixer = MixerSpec::Mla(MlaSpec { choice, ..mla.clone() });
        LayerSpec { mixer, ffn }
    };
    let layers = ffns.into_iter().zip(choices).map(layer).collect();
    Ok(common.into_spec(family, layers))
}

fn mla(config: &CheckedConfig<'_>) -> Result<MlaSpec> {
    let n_heads = config.width("num_attention_heads")?;
    let nope_dim = config.width("qk_nope_head_dim")?;
    let rope_dim = config.width("qk_rope_head_dim")?;
    let v_dim = config.width("v_head_dim")?;
    for (key, dim) in
        [("qk_nope_head_dim", nope_dim), ("qk_rope_head_dim", rope_dim), ("v_head_dim", v_dim)]
    {
        config.fits(("num_attention_heads", n_heads), (key, dim))?;
    }
    let q_rank = match config.text.usize_opt("q_lora_rank")? {
        Some(_) => Some(config.width("q_lora_rank")?),
        None => None,
    };
    let is_interleaved = config.flag_or("rope_interleave", true)?;
    let pairing = if is_interleaved { Pairing::Neighbours } else { Pairing::Halves };
    let rope = rope::parse(config, ("qk_rope_head_dim", rope_dim), RopeDefaults::WHOLE)?;
    let scale = libm::pow((nope_dim + rope_dim) as f64, -0.5) * rope.score_factor;
    let rope = rope.with_pairing(pairing);
    if rope.n_rotated != rope_dim {
        let advice = "partial rotation of `qk_rope_head_dim` is not supported";
        return Err(config.text.unsupported("partial_rotary_factor", advice));
    }
    Ok(MlaSpec {
        n_heads,
        q_rank,
        kv_rank: config.width("kv_lora_rank")?,
        nope_dim,
        rope_dim,
        v_dim,
        rope,
        scale: to_f32(scale),
        has_bias: config.flag_or("attention_bias", false)?,
        choice: None,
    })
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// Returns the feed-forwards of all layers: dense ones first, then routed ones.
pub(super) fn ffns(
    config: &CheckedConfig<'_>,
    defaults: &RouterDefaults,
    n_layers: usize,
) -> Result<Vec<FfnSpec>> {
    if config.text.value("moe_layer_freq").is_some_and(|value| value.as_u64() != Some(1)) {
        let advice = "only 1 (experts in every layer after the dense ones) is supported";
        return Err(config.text.unsupported("moe_layer_freq", advice));
    }
    let is_sparse = config.is_sparse_after_dense(defaults.n_dense_layers, n_layers)?;
    experts::ffns(config, &is_sparse, &moe(config, defaults)?)
}

fn moe(config: &CheckedConfig<'_>, defaults: &RouterDefaults) -> Result<MoeSpec> {
    for (key, known) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if config.text.str_opt(key)?.is_some_and(|name| name != known) {
            return Err(config.text.unsupported(key, &format!("only \"{known}\" is supported")));
        }
    }
    let n_experts = config.n_experts(&["n_routed_experts", "num_local_experts"])?;
    let top_k = config.top_k(n_experts)?;
    let inner = config.width("moe_intermediate_size")?;
    let router = router(config, defaults, n_experts, top_k)?;
    let n_shared = config.text.usize_opt("n_shared_experts")?.unwrap_or(1);
    config.fits(("n_shared_experts", n_shared), ("moe_intermediate_size", inner))?;
    let shared = SharedExpertSpec { inner: inner * n_shared, is_gated: false };
    Ok(MoeSpec {
        n_experts,
        top_k,
        inner,
        router,
        activation: Activation::SwiGlu,
        has_bias: false,
        shared: (n_shared > 0).then_some(shared),
    })
}

fn router(
    config: &CheckedConfig<'_>,
    defaults: &RouterDefaults,
    n_experts: usize,
    top_k: usize,
) -> Result<RouterSpec> {
    let n_groups = config.width_or("n_group", defaults.n_groups)?;
    config.divides(("n_group", n_groups), ("n_routed_experts", n_experts))?;
    let n_per_group = n_experts / n_groups;
    if n_per_group < 2 {
        // The score of a group is the sum of the scores of its two best experts.
        return Err(config.text.wrong("n_group", "groups of at least 2 experts"));
    }
    let n_groups_kept = config.width_or("topk_group", defaults.n_groups_kept)?;
    if n_groups_kept > n_groups {
        let expected = format!("at most the number of groups, {n_groups}");
        return Err(config.text.wrong("topk_group", &expected));
    }
    if top_k > n_groups_kept * n_per_group {
        let expected = format!(
            "at most the {} experts of {n_groups_kept} groups of {n_per_group}",
            n_groups_kept * n_per_group
        );
        return Err(config.text.wrong("num_experts_per_tok", &expected));
    }
    Ok(RouterSpec::SigmoidGrouped {
        n_groups,
        n_groups_kept,
        renormalise: config.flag_or("norm_topk_prob", true)?,
        factor: config.positive_or("routed_scaling_factor", defaults.factor)?,
    })
}
