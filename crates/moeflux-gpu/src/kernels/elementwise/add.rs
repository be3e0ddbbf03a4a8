//! [`Add`]: one invocation per value.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Add;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: "add", shaders: || vec![shader()] };

/// Invocations of a workgroup, one column each.
const N_COLS: u32 = 64;

params! {
    struct AddParams {
        x: View,
        y: View,
        out: View,
        n_heads: u32,
        head_dim: u32,
    }
}

fn shader() -> Shader {
    Shader::new("add", AddParams::WGSL, include_str!("add.wgsl")).with("N_COLS", N_COLS)
}

pub(crate) fn compile(op: &Add, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = AddParams {
        x: compiler.view(&op.x),
        y: compiler.view(&op.y),
        out: compiler.view(&op.out),
        n_heads: narrow(op.out.n_heads),
        head_dim: narrow(op.out.head_dim),
    };
    let n_cols = narrow(op.out.n_heads * op.out.head_dim);
    let grid = Grid::new(GridExtent::fixed(n_cols.div_ceil(N_COLS)), GridExtent::rows(1));
    compiler.step(&shader(), &params, grid)?;
    Ok(())
}
