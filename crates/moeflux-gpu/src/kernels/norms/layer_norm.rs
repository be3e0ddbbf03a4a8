//! [`LayerNorm`]: one workgroup per head of a row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::LayerNorm;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "layer_norm",
    shaders: || {
        let variants = [ReductionMethod::Subgroups, ReductionMethod::Shared];
        variants.map(|reduction| shader(reduction, 64)).into()
    },
};

params! {
    struct LayerNormParams {
        x: View,
        out: View,
        head_dim: u32,
        /// Shared by all heads.
        gain: u32,
        /// Shared by all heads.
        bias: u32,
        epsilon: f32,
    }
}

fn shader(reduction: ReductionMethod, n_lanes: u32) -> Shader {
    let source = include_str!("layer_norm.wgsl");
    reduction.add_to(Shader::new("layer_norm", LayerNormParams::WGSL, source), n_lanes)
}

pub(crate) fn compile(op: &LayerNorm, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = LayerNormParams {
        x: compiler.view(&op.x),
        out: compiler.view(&op.out),
        head_dim: narrow(op.x.head_dim),
        gain: compiler.vector(op.gain),
        bias: compiler.vector(op.bias),
        epsilon: op.epsilon,
    };
    let shader = shader(ReductionMethod::on(compiler), lanes_for(op.x.head_dim));
    let grid = Grid::new(GridExtent::fixed(narrow(op.x.n_heads)), GridExtent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
