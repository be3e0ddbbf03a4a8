//! [`HeadDot`]: one workgroup per head of a row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::HeadDot;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "head_dot",
    shaders: || ReductionMethod::ALL.map(|reduction| shader(reduction, 32)).into(),
};

params! {
    struct HeadDotParams {
        x: View,
        y: View,
        out: View,
        head_dim: u32,
        factor: f32,
    }
}

fn shader(reduction: ReductionMethod, n_lanes: u32) -> Shader {
    let shader = Shader::new("head_dot", HeadDotParams::WGSL, include_str!("head_dot.wgsl"));
    reduction.add_to(shader, n_lanes)
}

pub(crate) fn compile(op: &HeadDot, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = HeadDotParams {
        x: compiler.view(&op.x),
        y: compiler.view(&op.y),
        out: compiler.view(&op.out),
        head_dim: narrow(op.x.head_dim),
        factor: op.factor,
    };
    let shader = shader(ReductionMethod::on(compiler), lanes_for(op.x.head_dim));
    let grid = Grid::new(GridExtent::fixed(narrow(op.x.n_heads)), GridExtent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
