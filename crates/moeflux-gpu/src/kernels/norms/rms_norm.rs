//! [`RmsNorm`]: one workgroup per head of a row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Gain, RmsNorm};
use moeflux::provider::spec::GateFunction;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "rms_norm",
    shaders: || {
        let variants = [
            (ReductionMethod::Subgroups, Some(GateFunction::Silu)),
            (ReductionMethod::Subgroups, Some(GateFunction::Sigmoid)),
            (ReductionMethod::Shared, None),
        ];
        variants.map(|(reduction, gate)| shader(reduction, 64, gate)).into()
    },
};

params! {
    struct RmsNormParams {
        x: View,
        gate: View,
        out: View,
        head_dim: u32,
        gain: u32,
        /// Gains from one head to the next; 0 if all share them.
        gain_stride: u32,
        epsilon: f32,
    }
}

fn shader(reduction: ReductionMethod, n_lanes: u32, gate: Option<GateFunction>) -> Shader {
    let shader = Shader::new("rms_norm", RmsNormParams::WGSL, include_str!("rms_norm.wgsl"))
        .with("HAS_GATE", gate.is_some())
        .with("IS_SILU", gate == Some(GateFunction::Silu))
        .fragment(include_str!("../shared/functions.wgsl"));
    reduction.add_to(shader, n_lanes)
}

pub(crate) fn compile(op: &RmsNorm, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = RmsNormParams {
        x: compiler.view(&op.x),
        gate: compiler.view(&op.gate.map_or(op.x, |gate| gate.x)),
        out: compiler.view(&op.out),
        head_dim: narrow(op.x.head_dim),
        gain: compiler.vector(op.gain.vector()),
        gain_stride: match op.gain {
            Gain::Shared(_) => 0,
            Gain::PerHead(_) => narrow(op.x.head_dim),
        },
        epsilon: op.epsilon,
    };
    let gate = op.gate.map(|gate| gate.function);
    let shader = shader(ReductionMethod::on(compiler), lanes_for(op.x.head_dim), gate);
    let grid = Grid::new(GridExtent::fixed(narrow(op.x.n_heads)), GridExtent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
