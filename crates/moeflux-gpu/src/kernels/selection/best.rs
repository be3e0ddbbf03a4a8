//! [`TopK`]: rounds of sorting. Each chunk writes a list of its best values for the next round.
//!
//! A vocabulary of 248,320 takes three rounds of 243, 16 and 1 workgroups.

use moeflux::provider::error::Result;
use moeflux::provider::ops::TopK;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{NONE, Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: "best", shaders: || vec![shader()] };

/// Values that a workgroup sorts: a power of two, and at least two per invocation.
const CHUNK: u32 = 1024;

/// Invocations of a workgroup.
const LANES: u32 = 256;

params! {
    struct BestParams {
        x: View,
        out: View,
        /// Values of a row of `x`.
        n: u32,
        /// Offset of their columns from the first value. `NONE`: value `i` is in column `i`.
        columns_at: u32,
        /// Values that a chunk writes, if it has that many.
        n_best: u32,
        /// Distance from these values to their columns.
        out_columns_at: u32,
    }
}

fn shader() -> Shader {
    Shader::new("best", BestParams::WGSL, include_str!("best.wgsl"))
        .with("CHUNK", CHUNK)
        .with("LANES", LANES)
}

pub(crate) fn compile(op: &TopK, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_best = narrow(op.out.head_dim / 2);
    let (mut x, mut n, mut columns_at) = (compiler.view(&op.x), narrow(op.x.head_dim), NONE);
    let mut lists = ["best of chunks", "best of their best"].into_iter().cycle();
    while n > CHUNK {
        let n_left = n / CHUNK * n_best + n_best.min(n % CHUNK);
        let name = lists.next().expect("a cycle has no end");
        let out = compiler.scratch_beside(&op.x, name, 2 * n_left as usize)?;
        let params = BestParams { x, out, n, columns_at, n_best, out_columns_at: n_left };
        round(&params, compiler)?;
        (x, n, columns_at) = (out, n_left, n_left);
    }
    let out = compiler.view(&op.out);
    round(&BestParams { x, out, n, columns_at, n_best, out_columns_at: n_best }, compiler)
}

fn round(params: &BestParams, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let grid = Grid::new(GridExtent::fixed(params.n.div_ceil(CHUNK)), GridExtent::rows(1));
    compiler.step(&shader(), params, grid)?;
    Ok(())
}
