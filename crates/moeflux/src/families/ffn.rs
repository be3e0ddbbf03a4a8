//! The part of a layer after the mixer: a dense SwiGLU, or a router with experts.

use crate::error::Result;
use crate::families::MoePlan;
use crate::families::site::Site;
use crate::ops::{
    Combine, ExpertBiases, ExpertFfn, Heads, MatMul, Op, Plan, Purpose, RmsNorm, Route, RouterKind,
    SwiGlu,
};
use crate::spec::{MoeSpec, RouterSpec, SharedExpertSpec};
use crate::weights::ExpertShape;

/// Appends a dense feed-forward; it reads `normed` and adds to the residual stream.
pub(super) fn push_dense(site: &mut Site<'_, '_>, inner: usize, ops: &mut Vec<Op>) -> Result<()> {
    let out = site.buffer("block_out", site.spec.hidden);
    push_swiglu(site, "mlp", (inner, out), ops)?;
    ops.push(site.add_to_stream(out));
    Ok(())
}

/// Appends the router; it reads `normed`.
pub(super) fn push_router(
    site: &mut Site<'_, '_>,
    spec: &MoeSpec,
    ops: &mut Vec<Op>,
) -> Result<()> {
    let logits = site.buffer("router_logits", spec.n_experts);
    let gate = site.name("mlp.gate");
    ops.push(match spec.has_bias {
        true => site.linear_with_bias("mlp.gate", site.normed, logits)?,
        false => site.linear("mlp.gate", site.normed, logits)?,
    });
    let kind = match spec.router {
        RouterSpec::Softmax { renormalise } => RouterKind::Softmax { renormalise },
        RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, renormalise, factor } => {
            let tensor = format!("{gate}.e_score_correction_bias");
            let correction = site.binder.vector(&tensor, spec.n_experts)?;
            RouterKind::SigmoidGrouped { correction, n_groups, n_groups_kept, renormalise, factor }
        }
    };
    ops.push(Op::Route(Route { logits, kind, top_k: spec.top_k, purpose: Purpose::Use }));
    Ok(())
}

/// Returns the plans after the router's choice. `mixer` holds the ops before it; those from
/// `first_of_router` derive the choice from the residual stream.
///
/// A guess is made while routed experts are being read. It must not overwrite their input, but it
/// may use their output buffer.
pub(super) fn moe_plan(
    site: &mut Site<'_, '_>,
    spec: &MoeSpec,
    (mixer, first_of_router): (&[Op], usize),
) -> Result<MoePlan> {
    let hidden = site.spec.hidden;
    let shape = ExpertShape { n_experts: spec.n_experts, hidden, inner: spec.inner };
    let prefix = site.name("mlp");
    site.binder.experts(site.layer, &prefix, shape)?;
    let biases = match spec.has_bias {
        true => {
            let [gate, up, down] = site.binder.expert_biases(&prefix, shape)?;
            Some(ExpertBiases { gate, up, down })
        }
        false => None,
    };
    let sum = site.buffer("expert_sum", hidden);

    let mut shared_ops = Vec::new();
    let shared = match spec.shared {
        Some(shared) => Some(push_shared(site, shared, &mut shared_ops)?),
        None => None,
    };
    let (shared, shared_gate) = shared.map_or((None, None), |(out, gate)| (Some(out), gate));
    let (residual, out) = (site.stream, site.stream);
    let (layer, limit) = (site.layer, spec.activation.limit());
    let experts = ExpertFfn { layer, x: site.normed, sum, limit, biases };
    let combine = Combine { sum, shared, shared_gate, residual, out };
    let behind = [Op::ExpertFfn(experts), Op::Combine(combine)];
    let router = &mixer[first_of_router..];
    Ok(MoePlan {
        whole: Plan::new([mixer, &shared_ops, &behind].concat()),
        shared: Plan::new(shared_ops),
        experts: Plan::new(behind[..1].to_vec()),
        combine: Plan::new(behind[1..].to_vec()),
        guess: Plan::new(router.iter().map(|op| guessing(op, (site.normed, sum), spec)).collect()),
        divided: None,
    })
}

/// Returns the op as used for guesses: normed values go to another buffer, and more experts are
/// named.
fn guessing(op: &Op, (normed, scratch): (Heads, Heads), spec: &MoeSpec) -> Op {
    match op {
        Op::RmsNorm(norm) if norm.out == normed => {
            Op::RmsNorm(RmsNorm { out: scratch, ..norm.clone() })
        }
        Op::MatMul(gate) if gate.x == normed => Op::MatMul(MatMul { x: scratch, ..gate.clone() }),
        Op::Route(route) => {
            let (top_k, purpose) = (spec.n_named(), Purpose::Guess);
            Op::Route(Route { top_k, purpose, ..route.clone() })
        }
        other => unreachable!("{} leads to no choice", other.name()),
    }
}

/// Appends the shared expert. Returns its output and, if it has one, its gate before the sigmoid.
fn push_shared(
    site: &mut Site<'_, '_>,
    spec: SharedExpertSpec,
    ops: &mut Vec<Op>,
) -> Result<(Heads, Option<Heads>)> {
    let out = site.buffer("shared_out", site.spec.hidden);
    if !spec.is_gated {
        push_swiglu(site, "mlp.shared_experts", (spec.inner, out), ops)?;
        return Ok((out, None));
    }
    push_swiglu(site, "mlp.shared_expert", (spec.inner, out), ops)?;
    let gate = site.buffer("shared_gate", 1);
    ops.push(site.linear("mlp.shared_expert_gate", site.normed, gate)?);
    Ok((out, Some(gate)))
}

/// Appends `out = down . (silu(gate . normed) * (up . normed))` with inner width `inner`.
fn push_swiglu(
    site: &mut Site<'_, '_>,
    module: &str,
    (inner, out): (usize, Heads),
    ops: &mut Vec<Op>,
) -> Result<()> {
    let gate = site.buffer("ffn_gate", inner);
    let up = site.buffer("ffn_up", inner);
    ops.push(site.linear(&format!("{module}.gate_proj"), site.normed, gate)?);
    ops.push(site.linear(&format!("{module}.up_proj"), site.normed, up)?);
    ops.push(Op::SwiGlu(SwiGlu { gate, up, out: gate, limit: None }));
    ops.push(site.linear(&format!("{module}.down_proj"), gate, out)?);
    Ok(())
}
