//! [`RmsNorm`]: one workgroup per head of a row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::RmsNorm;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "rms_norm",
    shaders: || {
        let variants = [(ReductionMethod::Subgroups, true), (ReductionMethod::Shared, false)];
        variants.map(|(reduction, has_gate)| shader(reduction, 64, has_gate)).into()
    },
};

params! {
    struct RmsNormParams {
        x: View,
        gate: View,
        out: View,
        head_dim: u32,
        /// Shared by all heads.
        gain: u32,
        epsilon: f32,
    }
}

fn shader(reduction: ReductionMethod, n_lanes: u32, has_gate: bool) -> Shader {
    let shader = Shader::new("rms_norm", RmsNormParams::WGSL, include_str!("rms_norm.wgsl"))
        .with("HAS_GATE", has_gate)
        .fragment(include_str!("../shared/functions.wgsl"));
    reduction.add_to(shader, n_lanes)
}

pub(crate) fn compile(op: &RmsNorm, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = RmsNormParams {
        x: compiler.view(&op.x),
        gate: compiler.view(&op.gate.unwrap_or(op.x)),
        out: compiler.view(&op.out),
        head_dim: narrow(op.x.head_dim),
        gain: compiler.vector(op.gain),
        epsilon: op.epsilon,
    };
    let shader = shader(ReductionMethod::on(compiler), lanes_for(op.x.head_dim), op.gate.is_some());
    let grid = Grid::new(GridExtent::fixed(narrow(op.x.n_heads)), GridExtent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
