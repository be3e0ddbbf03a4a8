//! [`Embed`]: one invocation for four values of a row of the table.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Embed;
use moeflux_kernels::MatrixLayout;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::products::decode_matrix::{self, kind_of, reading};
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "embed", shaders: || decode_matrix::examples().into_iter().map(shader).collect() };

/// Invocations of a workgroup, four columns each.
const N_INVOCATIONS: u32 = 64;

params! {
    struct EmbedParams {
        out: View,
        n_heads: u32,
        n_cols: u32,
        /// Rows of the table that are in the bound arena.
        first_token: u32,
        n_tokens: u32,
        /// Offsets of their parts, in words.
        codes: u32,
        scales: u32,
        biases: u32,
    }
}

fn shader(layout: MatrixLayout) -> Shader {
    let shader = Shader::new("embed", EmbedParams::WGSL, include_str!("embed.wgsl"));
    reading(shader, [("KIND", kind_of(layout))]).with("N_INVOCATIONS", N_INVOCATIONS)
}

pub(crate) fn compile(op: &Embed, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let table = compiler.matrix(op.table);
    let n_cols = narrow(op.out.head_dim);
    for slice in &table.slices {
        let params = EmbedParams {
            out: compiler.view(&op.out),
            n_heads: narrow(op.out.n_heads),
            n_cols,
            first_token: slice.first_row,
            n_tokens: slice.n_rows,
            codes: slice.codes,
            scales: slice.scales,
            biases: slice.biases,
        };
        let n_groups = n_cols.div_ceil(N_INVOCATIONS * 4);
        let grid = Grid::new(GridExtent::fixed(n_groups), GridExtent::rows(1));
        compiler.step(&shader(table.layout), &params, grid)?.weights(slice.arena);
    }
    Ok(())
}
