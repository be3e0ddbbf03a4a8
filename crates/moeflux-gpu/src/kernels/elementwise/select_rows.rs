//! [`SelectRows`]: one invocation per value.

use moeflux::provider::error::Result;
use moeflux::provider::ops::SelectRows;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: "select_rows", shaders: || vec![shader()] };

/// Invocations of a workgroup, one column each.
const N_COLS: u32 = 64;

params! {
    struct SelectRowsParams {
        x: View,
        out: View,
        n_cols: u32,
    }
}

fn shader() -> Shader {
    Shader::new("select_rows", SelectRowsParams::WGSL, include_str!("select_rows.wgsl"))
        .with("N_COLS", N_COLS)
}

pub(crate) fn compile(op: &SelectRows, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_cols = narrow(op.x.head_dim);
    let params = SelectRowsParams { x: compiler.view(&op.x), out: compiler.view(&op.out), n_cols };
    let grid = Grid::new(GridExtent::fixed(n_cols.div_ceil(N_COLS)), GridExtent::rows(1));
    compiler.step(&shader(), &params, grid)?;
    Ok(())
}
