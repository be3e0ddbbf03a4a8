//! [`DeltaGates`]: one invocation per value head.

use moeflux::provider::error::Result;
use moeflux::provider::ops::DeltaGates;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: "delta_gates", shaders: || vec![shader()] };

/// Invocations of a workgroup, one head each.
const N_HEADS: u32 = 32;

params! {
    struct DeltaGatesParams {
        a: View,
        b: View,
        decay: View,
        beta: View,
        n_heads: u32,
        a_log: u32,
        dt_bias: u32,
    }
}

fn shader() -> Shader {
    Shader::new("delta_gates", DeltaGatesParams::WGSL, include_str!("delta_gates.wgsl"))
        .with("N_HEADS", N_HEADS)
        .fragment(include_str!("../shared/functions.wgsl"))
        .fragment(include_str!("gates.wgsl"))
}

pub(crate) fn compile(op: &DeltaGates, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_heads = narrow(op.a.head_dim);
    let params = DeltaGatesParams {
        a: compiler.view(&op.a),
        b: compiler.view(&op.b),
        decay: compiler.view(&op.decay),
        beta: compiler.view(&op.beta),
        n_heads,
        a_log: compiler.vector(op.a_log),
        dt_bias: compiler.vector(op.dt_bias),
    };
    let grid = Grid::new(GridExtent::fixed(n_heads.div_ceil(N_HEADS)), GridExtent::rows(1));
    compiler.step(&shader(), &params, grid)?;
    Ok(())
}
