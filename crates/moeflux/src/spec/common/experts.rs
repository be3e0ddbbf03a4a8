//! Parses routed experts from the families' configs.

use crate::error::Result;
use crate::spec::config::CheckedConfig;
use crate::spec::{Activation, FfnSpec, MoeSpec, RouterSpec, SharedExpertSpec};

/// Keys of the number of routed experts in families with a softmax router.
const N_EXPERTS: [&str; 2] = ["num_experts", "num_local_experts"];

/// Parses experts with a softmax router and without a shared expert. `inner_key` has the width of
/// an expert.
pub(in crate::spec) fn softmax_experts(
    config: &CheckedConfig<'_>,
    inner_key: &str,
    renormalise: bool,
) -> Result<MoeSpec> {
    let n_experts = config.n_experts(&N_EXPERTS)?;
    Ok(MoeSpec {
        n_experts,
        top_k: config.top_k(n_experts)?,
        inner: config.width(inner_key)?,
        router: RouterSpec::Softmax { renormalise },
        activation: Activation::SwiGlu,
        has_bias: false,
        shared: None,
    })
}

/// Parses experts with a sigmoid router, a correction bias for the selection and a single group.
/// Their weights are normalised to sum to `factor`.
pub(in crate::spec) fn sigmoid_experts(
    config: &CheckedConfig<'_>,
    inner_key: &str,
    factor: f32,
    shared: Option<SharedExpertSpec>,
) -> Result<MoeSpec> {
    if config.n_experts(&N_EXPERTS)? < 2 {
        // The score of a group is the sum of its two best.
        return Err(config.text.wrong(config.text.present(&N_EXPERTS), "at least 2"));
    }
    let router =
        RouterSpec::SigmoidGrouped { n_groups: 1, n_groups_kept: 1, renormalise: true, factor };
    Ok(MoeSpec { router, shared, ..softmax_experts(config, inner_key, true)? })
}

/// Returns the feed-forwards of all layers: routed experts, or dense ones of the published width.
pub(in crate::spec) fn ffns(
    config: &CheckedConfig<'_>,
    is_sparse: &[bool],
    moe: &MoeSpec,
) -> Result<Vec<FfnSpec>> {
    let ffn = |is_sparse: &bool| match is_sparse {
        true => Ok(FfnSpec::Moe(moe.clone())),
        false => config.dense_ffn(),
    };
    is_sparse.iter().map(ffn).collect()
}
