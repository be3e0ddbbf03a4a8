//! The part of a layer after the mixer: a dense SwiGLU, or a router with experts.

use crate::error::Result;
use crate::families::MoePlan;
use crate::families::layer_builder::LayerBuilder;
use crate::ops::{
    Combine, ExpertBiases, ExpertFfn, Heads, MatMul, Op, Plan, Purpose, RmsNorm, Route, RouterKind,
    StreamRead, SwiGlu,
};
use crate::spec::{MoeSpec, RouterSpec, SharedExpertSpec};
use crate::weights::ExpertShape;

/// Which projections of a SwiGLU have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FfnBias {
    None,
    All,
}

/// Appends a dense feed-forward of an inner width; it reads `normed` and adds to the residual
/// stream.
pub(super) fn push_dense(
    builder: &mut LayerBuilder<'_, '_>,
    (inner, bias): (usize, FfnBias),
    ops: &mut Vec<Op>,
) -> Result<()> {
    let out = builder.buffer("block_out", builder.spec.hidden);
    push_swiglu(builder, "mlp", (inner, bias, out), ops)?;
    ops.push(builder.add_to_stream(out));
    Ok(())
}

/// Appends the router; it reads `normed`.
pub(super) fn push_router(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MoeSpec,
    ops: &mut Vec<Op>,
) -> Result<()> {
    if spec.router == RouterSpec::Only {
        // The softmax of one logit is 1, whatever the logit.
        let logits = Heads { n_heads: 1, head_dim: 1, ..builder.normed };
        let kind = RouterKind::Softmax { renormalise: true };
        ops.push(Op::Route(Route { logits, kind, top_k: 1, purpose: Purpose::Compute }));
        return Ok(());
    }
    let logits = builder.buffer("router_logits", spec.n_experts);
    let gate = builder.name("mlp.gate");
    ops.push(match spec.has_bias {
        true => builder.linear_with_bias("mlp.gate", builder.normed, logits)?,
        false => builder.linear("mlp.gate", builder.normed, logits)?,
    });
    let kind = match spec.router {
        RouterSpec::Only => unreachable!("handled above"),
        RouterSpec::Softmax { renormalise } => RouterKind::Softmax { renormalise },
        RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, renormalise, factor } => {
            let tensor = format!("{gate}.e_score_correction_bias");
            let correction = builder.binder.vector(&tensor, spec.n_experts)?;
            RouterKind::SigmoidGrouped { correction, n_groups, n_groups_kept, renormalise, factor }
        }
    };
    ops.push(Op::Route(Route { logits, kind, top_k: spec.top_k, purpose: Purpose::Compute }));
    Ok(())
}

/// Returns the plans after the router's choice. `mixer` holds the ops before it; those from
/// `first_of_router` derive the choice from the residual stream.
///
/// A guess is made while routed experts are being read. It must not overwrite their input, but it
/// may use their output buffer.
pub(super) fn moe_plan(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MoeSpec,
    (mixer, first_of_router): (&[Op], usize),
) -> Result<MoePlan> {
    let hidden = builder.spec.hidden;
    let prefix = builder.name("mlp");
    let biases = bind_experts(builder, spec, &prefix)?;
    let sum = builder.buffer("expert_sum", hidden);

    let mut shared_ops = Vec::new();
    let shared = match spec.shared {
        Some(shared) => Some(push_shared(builder, shared, &mut shared_ops)?),
        None => None,
    };
    let (shared, shared_gate) = shared.map_or((None, None), |(out, gate)| (Some(out), gate));
    // One stream takes the sum at once; several take it times a factor each.
    let (residual, out) = match builder.streams {
        None => (Some(builder.stream), builder.stream),
        Some(_) => (None, builder.buffer("block_out", hidden)),
    };
    let (layer, limit) = (builder.layer, spec.activation.limit());
    let experts = ExpertFfn { layer, x: builder.normed, sum, limit, biases };
    let combine = Combine { sum, shared, shared_gate, residual, out };
    let mut after = vec![Op::ExpertFfn(experts), Op::Combine(combine)];
    after.extend(residual.is_none().then(|| builder.add_to_stream(out)));
    let router = match spec.router {
        RouterSpec::Only => &[],
        RouterSpec::Softmax { .. } | RouterSpec::SigmoidGrouped { .. } => &mixer[first_of_router..],
    };
    // The factors of a block's output are in use until the sum is added.
    let factors = builder.streams.map(|streams| streams.beta.buffer);
    let leads_to_choice =
        |op: &&Op| factors.is_none_or(|it| op.heads().last().is_none_or(|out| out.buffer != it));
    let router = router.iter().filter(leads_to_choice);
    Ok(MoePlan {
        whole: Plan::new([mixer, &shared_ops, &after].concat()),
        shared: Plan::new(shared_ops),
        experts: Plan::new(after[..1].to_vec()),
        combine: Plan::new(after[1..].to_vec()),
        guess: Plan::new(router.map(|op| guessing(op, (builder.normed, sum), spec)).collect()),
        sharded: None,
    })
}

/// Binds the experts of a layer. Returns their biases, if they have some.
fn bind_experts(
    builder: &mut LayerBuilder<'_, '_>,
    spec: &MoeSpec,
    prefix: &str,
) -> Result<Option<ExpertBiases>> {
    let MoeSpec { n_experts, inner, .. } = *spec;
    let (hidden, layer, binder) = (builder.spec.hidden, builder.layer, &mut *builder.binder);
    if spec.router == RouterSpec::Only {
        binder.dense_expert(layer, prefix, (hidden, inner))?;
        let mut bias =
            |projection: &str, n| binder.vector(&format!("{prefix}.{projection}.bias"), n);
        return Ok(match spec.has_bias {
            true => Some(ExpertBiases {
                gate: bias("gate_proj", inner)?,
                up: bias("up_proj", inner)?,
                down: bias("down_proj", hidden)?,
            }),
            false => None,
        });
    }
    let shape = ExpertShape { n_experts, hidden, inner };
    binder.experts(layer, prefix, shape)?;
    Ok(match spec.has_bias {
        true => {
            let [gate, up, down] = binder.expert_biases(prefix, shape)?;
            Some(ExpertBiases { gate, up, down })
        }
        false => None,
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
            let (top_k, purpose) = (spec.n_predicted(), Purpose::Prefetch);
            Op::Route(Route { top_k, purpose, ..route.clone() })
        }
        Op::StreamRead(read) if read.out == normed => {
            Op::StreamRead(StreamRead { out: scratch, ..read.clone() })
        }
        // The rest of a read of streams, whose buffers serve nothing else.
        Op::RmsNorm(_) | Op::MatMul(_) | Op::Activate(_) => op.clone(),
        other => unreachable!("{} leads to no choice", other.name()),
    }
}

/// Appends the shared expert. Returns its output and, if it has one, its gate before the sigmoid.
fn push_shared(
    builder: &mut LayerBuilder<'_, '_>,
    spec: SharedExpertSpec,
    ops: &mut Vec<Op>,
) -> Result<(Heads, Option<Heads>)> {
    let out = builder.buffer("shared_out", builder.spec.hidden);
    if !spec.is_gated {
        push_swiglu(builder, "mlp.shared_experts", (spec.inner, FfnBias::None, out), ops)?;
        return Ok((out, None));
    }
    push_swiglu(builder, "mlp.shared_expert", (spec.inner, FfnBias::None, out), ops)?;
    let gate = builder.buffer("shared_gate", 1);
    ops.push(builder.linear("mlp.shared_expert_gate", builder.normed, gate)?);
    Ok((out, Some(gate)))
}

/// Appends `out = down . (silu(gate . normed) * (up . normed))` with inner width `inner`.
fn push_swiglu(
    builder: &mut LayerBuilder<'_, '_>,
    module: &str,
    (inner, bias, out): (usize, FfnBias, Heads),
    ops: &mut Vec<Op>,
) -> Result<()> {
    let gate = builder.buffer("ffn_gate", inner);
    let up = builder.buffer("ffn_up", inner);
    let normed = builder.normed;
    let mut linear = |projection: &str, x, out| {
        let module = format!("{module}.{projection}");
        match bias {
            FfnBias::None => builder.linear(&module, x, out),
            FfnBias::All => builder.linear_with_bias(&module, x, out),
        }
    };
    ops.push(linear("gate_proj", normed, gate)?);
    ops.push(linear("up_proj", normed, up)?);
    ops.push(Op::SwiGlu(SwiGlu { gate, up, out: gate, limit: None }));
    ops.push(linear("down_proj", gate, out)?);
    Ok(())
}
