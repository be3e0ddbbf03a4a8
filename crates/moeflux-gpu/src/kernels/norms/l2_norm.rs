//! [`L2Norm`]: one workgroup per head of a row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::L2Norm;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "l2_norm",
    shaders: || ReductionMethod::ALL.map(|reduction| shader(reduction, 32)).into(),
};

params! {
    struct L2NormParams {
        x: View,
        head_dim: u32,
        epsilon: f32,
        factor: f32,
    }
}

fn shader(reduction: ReductionMethod, n_lanes: u32) -> Shader {
    reduction
        .add_to(Shader::new("l2_norm", L2NormParams::WGSL, include_str!("l2_norm.wgsl")), n_lanes)
}

pub(crate) fn compile(op: &L2Norm, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = L2NormParams {
        x: compiler.view(&op.x),
        head_dim: narrow(op.x.head_dim),
        epsilon: op.epsilon,
        factor: op.factor,
    };
    let shader = shader(ReductionMethod::on(compiler), lanes_for(op.x.head_dim));
    let grid = Grid::new(GridExtent::fixed(narrow(op.x.n_heads)), GridExtent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
