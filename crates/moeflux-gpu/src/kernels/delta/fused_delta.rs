//! A layer of gated DeltaNet between its projections, as one step for one row of a segment: the
//! convolution, the norms of queries and keys, the gates, the delta rule, the norm of the output.
//!
//! One workgroup per key head, with all value heads that share it: a channel's stored convolution
//! inputs are read and written by one workgroup alone. **Invariant:** intermediate results of these
//! ops are not written; more rows use the steps of each op.

use moeflux::provider::ops::{
    CausalConv, DeltaGates, Gain, GatedDelta, Heads, KeptInputs, L2Norm, Op, RmsNorm,
};
use moeflux::provider::spec::{GateFunction, HeadOrder};

use moeflux::provider::error::Result;

use super::{causal_conv, delta_gates, gated_delta};
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::norms::{l2_norm, rms_norm};
use crate::kernels::products::matvec::neighbours;
use crate::kernels::shared::reduce::ReductionMethod;
use crate::params::{Params, View, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent, Over};

pub(crate) const KERNEL: Kernel = Kernel { op: NAME, shaders };

/// Name of the shader.
const NAME: &str = "delta layer";

/// Invocations of a workgroup; upper bound on the values of a head.
const N_LANES: u32 = 256;

/// Upper bounds on heads at once, and on quads of their keys in an invocation's registers: sums of
/// four are computed at once, and registers are scarce.
const N_HELD_MAX: usize = 4;
const N_HELD_KEYS_MAX: usize = 16;

params! {
    struct DeltaLayerParams {
        /// Input of the convolution.
        x: View,
        a: View,
        b: View,
        gate: View,
        out: View,
        q_channel: u32,
        k_channel: u32,
        v_channel: u32,
        weight: u32,
        a_log: u32,
        dt_bias: u32,
        gain: u32,
        q_factor: f32,
        k_factor: f32,
        key_epsilon: f32,
        epsilon: f32,
    }
}

/// Shape of a layer.
#[derive(Clone, Copy)]
struct DeltaLayerShape {
    n_key_heads: usize,
    /// Value heads that share a key head.
    n_shared: usize,
    key_dim: usize,
    value_dim: usize,
    n_taps: usize,
    order: HeadOrder,
}

/// Consecutive ops of such a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaLayer<'a> {
    conv: &'a CausalConv,
    q_norm: &'a L2Norm,
    k_norm: &'a L2Norm,
    gates: &'a DeltaGates,
    delta: &'a GatedDelta,
    norm: &'a RmsNorm,
    gate: Heads,
}

impl<'a> DeltaLayer<'a> {
    /// Number of ops.
    pub(crate) const N_OPS: usize = 6;

    /// Returns the first ops of a list, if they are such a layer.
    pub(crate) fn of(ops: &'a [Op]) -> Option<Self> {
        let [
            Op::CausalConv(conv),
            Op::L2Norm(q_norm),
            Op::L2Norm(k_norm),
            Op::DeltaGates(gates),
            Op::GatedDelta(delta),
            Op::RmsNorm(norm),
            ..,
        ] = ops
        else {
            return None;
        };
        let gate = norm.gate.filter(|gate| gate.function == GateFunction::Silu)?.x;
        let layer = Self { conv, q_norm, k_norm, gates, delta, norm, gate };
        layer.is_whole().then_some(layer)
    }

    /// Returns whether each op consumes all outputs of the one before it.
    fn is_whole(&self) -> bool {
        let Self { conv, q_norm, k_norm, gates, delta, norm, .. } = self;
        let n_channels = 2 * channels_of(delta.k) + channels_of(delta.v);
        let are_heads_of_conv = [delta.q, delta.k, delta.v].iter().all(|heads| {
            let begins_inside = heads.first_col >= conv.out.first_col;
            heads.buffer == conv.out.buffer && heads.stride == heads.head_dim && begins_inside
        });
        are_heads_of_conv
            && n_channels == conv.out.head_dim
            && conv.n_taps >= 2
            && conv.dilation == 1
            && conv.kept == KeptInputs::alone(conv.n_kept() * n_channels)
            && q_norm.x == delta.q
            && k_norm.x == delta.k
            && q_norm.epsilon.to_bits() == k_norm.epsilon.to_bits()
            && gates.decay == delta.decay
            && gates.beta == delta.beta
            && norm.x == delta.out
            && matches!(norm.gain, Gain::Shared(_))
            && delta.v.head_dim <= N_LANES as usize
    }

    fn shape(&self) -> DeltaLayerShape {
        DeltaLayerShape {
            n_key_heads: self.delta.k.n_heads,
            n_shared: self.delta.v.n_heads / self.delta.k.n_heads,
            key_dim: self.delta.k.head_dim,
            value_dim: self.delta.v.head_dim,
            n_taps: self.conv.n_taps,
            order: self.delta.order,
        }
    }

    fn params(&self, compiler: &PlanCompiler<'_>) -> DeltaLayerParams {
        let channel = |heads: &Heads| narrow(heads.first_col - self.conv.out.first_col);
        DeltaLayerParams {
            x: compiler.view(&self.conv.x),
            a: compiler.view(&self.gates.a),
            b: compiler.view(&self.gates.b),
            gate: compiler.view(&self.gate),
            out: compiler.view(&self.norm.out),
            q_channel: channel(&self.delta.q),
            k_channel: channel(&self.delta.k),
            v_channel: channel(&self.delta.v),
            weight: compiler.vector(self.conv.weight),
            a_log: compiler.vector(self.gates.a_log),
            dt_bias: compiler.vector(self.gates.dt_bias),
            gain: compiler.vector(self.norm.gain.vector()),
            q_factor: self.q_norm.factor,
            k_factor: self.k_norm.factor,
            key_epsilon: self.q_norm.epsilon,
            epsilon: self.norm.epsilon,
        }
    }

    /// Appends the steps.
    pub(crate) fn compile_fused(&self, compiler: &mut PlanCompiler<'_>) -> Result<()> {
        let shape = self.shape();
        let grid = Grid::new(GridExtent::fixed(narrow(shape.n_key_heads)), GridExtent::fixed(1));
        let (shader, params) = (
            shader((ReductionMethod::on(compiler), compiler.subgroup_sizes()), shape),
            self.params(compiler),
        );
        let over = Over::State(self.conv.layer);
        compiler.step(&shader, &params, grid)?.over(over).when(1..=1);
        let first = compiler.steps.len();
        causal_conv::compile(self.conv, compiler)?;
        l2_norm::compile(self.q_norm, compiler)?;
        l2_norm::compile(self.k_norm, compiler)?;
        delta_gates::compile(self.gates, compiler)?;
        gated_delta::compile(self.delta, compiler)?;
        rms_norm::compile(self.norm, compiler)?;
        // Part by part, including the steps over rows: another part may have one row.
        for step in &mut compiler.steps[first..] {
            let rows = *step.n_rows.start().max(&2)..=*step.n_rows.end();
            step.when(rows);
            if step.over == Over::Rows {
                step.over(Over::RowsOfLong(self.conv.layer));
            }
        }
        Ok(())
    }
}

const fn channels_of(heads: Heads) -> usize {
    heads.n_heads * heads.head_dim
}

fn shader(
    (reduction, subgroup_sizes): (ReductionMethod, Option<(u32, u32)>),
    shape: DeltaLayerShape,
) -> Shader {
    let value_lanes = narrow(shape.value_dim.div_ceil(4).next_power_of_two());
    let n_parts = N_LANES / value_lanes;
    let smallest = subgroup_sizes.map_or(1, |(smallest, _)| smallest.max(1));
    let width = if reduction == ReductionMethod::Subgroups { smallest.min(n_parts) } else { 1 };
    let n_own = shape.key_dim.div_ceil(n_parts as usize);
    let n_held = (N_HELD_KEYS_MAX / n_own).clamp(1, N_HELD_MAX.min(shape.n_shared));
    let channels = shape.n_key_heads * (2 * shape.key_dim + shape.n_shared * shape.value_dim);
    // Distances from a value head to that of the next key head, and to the next of the same key
    // head.
    let (key_step, shared_step) = match shape.order {
        HeadOrder::Grouped => (shape.n_shared, 1),
        HeadOrder::Tiled => (1, shape.n_key_heads),
    };
    let are_quads = [shape.key_dim, shape.value_dim].iter().all(|it| it.is_multiple_of(4));
    let shader = Shader::new(NAME, DeltaLayerParams::WGSL, include_str!("fused_delta.wgsl"))
        .with("N_CHANNELS", narrow(channels))
        .with("N_SHARED", narrow(shape.n_shared))
        .with("KEY_STEP", narrow(key_step))
        .with("SHARED_STEP", narrow(shared_step))
        .with("KEY_DIM", narrow(shape.key_dim))
        .with("VALUE_DIM", narrow(shape.value_dim))
        .with("STRIP", narrow(moeflux::provider::ops::DeltaShape::STRIP))
        .with("N_TAPS", narrow(shape.n_taps))
        .with("N_PARTS", n_parts)
        .with("WIDTH", width)
        .with("HELD", narrow(n_held))
        .fragment(include_str!("../shared/functions.wgsl"))
        .fragment(include_str!("gates.wgsl"))
        .fragment(neighbours(width));
    let shader = if are_quads {
        shader.fragment(include_str!("delta_state_of_quads.wgsl")).state(VectorWidth::Four)
    } else {
        shader.fragment(include_str!("delta_state.wgsl")).state(VectorWidth::One)
    };
    reduction.add_fours_to(reduction.add_to(shader, N_LANES))
}

fn shaders() -> Vec<Shader> {
    let order = HeadOrder::Grouped;
    let large = DeltaLayerShape {
        n_key_heads: 16,
        n_shared: 2,
        key_dim: 128,
        value_dim: 128,
        n_taps: 4,
        order,
    };
    let order = HeadOrder::Tiled;
    let odd = DeltaLayerShape {
        n_key_heads: 2,
        n_shared: 3,
        key_dim: 37,
        value_dim: 21,
        n_taps: 2,
        order,
    };
    let subgroups = |sizes| (ReductionMethod::Subgroups, Some(sizes));
    vec![
        shader(subgroups((32, 32)), large),
        shader(subgroups((4, 8)), odd),
        shader((ReductionMethod::Shared, None), odd),
        shader((ReductionMethod::Shared, None), large),
    ]
}
