//! [`SwiGlu`]: one invocation per value.

use moeflux::provider::error::Result;
use moeflux::provider::ops::SwiGlu;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "swiglu", shaders: || [false, true].map(shader).into() };

/// Invocations of a workgroup, one column each.
const N_COLS: u32 = 64;

params! {
    struct SwiGluParams {
        gate: View,
        up: View,
        out: View,
        n_heads: u32,
        head_dim: u32,
        limit: f32,
    }
}

fn shader(has_limit: bool) -> Shader {
    Shader::new("swiglu", SwiGluParams::WGSL, include_str!("swiglu.wgsl"))
        .with("N_COLS", N_COLS)
        .with("HAS_LIMIT", has_limit)
        .fragment(include_str!("../shared/functions.wgsl"))
}

pub(crate) fn compile(op: &SwiGlu, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = SwiGluParams {
        gate: compiler.view(&op.gate),
        up: compiler.view(&op.up),
        out: compiler.view(&op.out),
        n_heads: narrow(op.out.n_heads),
        head_dim: narrow(op.out.head_dim),
        limit: op.limit.unwrap_or_default(),
    };
    let n_cols = narrow(op.out.n_heads * op.out.head_dim);
    let grid = Grid::new(GridExtent::fixed(n_cols.div_ceil(N_COLS)), GridExtent::rows(1));
    compiler.step(&shader(op.limit.is_some()), &params, grid)?;
    Ok(())
}
