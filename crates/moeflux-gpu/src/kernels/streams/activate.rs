//! [`Activate`]: one invocation per value.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Activate;
use moeflux_kernels::ValueFunction;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "activate", shaders: || (0..3).map(shader).collect() };

/// Invocations of a workgroup, one column each.
const N_COLS: u32 = 64;

params! {
    struct ActivateParams {
        x: View,
        out: View,
        n_heads: u32,
        head_dim: u32,
        before: f32,
        after: f32,
        /// Of a signed root.
        root_floor: f32,
    }
}

fn shader(function: u32) -> Shader {
    Shader::new("activate", ActivateParams::WGSL, include_str!("activate.wgsl"))
        .with("N_COLS", N_COLS)
        .with("FUNCTION", function)
        .fragment(include_str!("../shared/functions.wgsl"))
}

pub(crate) fn compile(op: &Activate, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let (function, root_floor) = match op.function.function {
        ValueFunction::Silu => (0, 0.0),
        ValueFunction::Sigmoid => (1, 0.0),
        ValueFunction::SignedRoot { floor } => (2, floor),
    };
    let params = ActivateParams {
        x: compiler.view(&op.x),
        out: compiler.view(&op.out),
        n_heads: narrow(op.out.n_heads),
        head_dim: narrow(op.out.head_dim),
        before: op.function.before,
        after: op.function.after,
        root_floor,
    };
    let n_cols = narrow(op.out.n_heads * op.out.head_dim);
    let grid = Grid::new(GridExtent::fixed(n_cols.div_ceil(N_COLS)), GridExtent::rows(1));
    compiler.step(&shader(function), &params, grid)?;
    Ok(())
}
