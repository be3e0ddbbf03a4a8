//! [`Embed`]: one invocation per value. Tables of f32 so far.

use moeflux::error::Result;
use moeflux::ops::Embed;
use moeflux_kernels::{FloatKind, MatrixKind};

use super::{Kernel, unsupported};
use crate::compiler::Compiler;
use crate::memory::narrow;
use crate::params::{Params as _, View, params};
use crate::shader::{Lanes, Shader};
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel {
    op: "embed",
    is_done: false,
    shaders: || vec![shader()],
    params: || vec![("embed", EmbedParams::fields())],
};

/// Invocations of a workgroup, each for one column.
const N_COLS: u32 = 64;

params! {
    struct EmbedParams {
        out: View,
        n_cols: u32,
        /// Rows of the table that lie in the bound arena.
        first_token: u32,
        n_tokens: u32,
        /// Where they begin, in words.
        codes: u32,
    }
}

fn shader() -> Shader {
    Shader::new("embed", include_str!("embed.wgsl")).with("N_COLS", N_COLS).weights(Lanes::One)
}

pub(super) fn compile(op: &Embed, compiler: &mut Compiler<'_>) -> Result<()> {
    let table = compiler.matrix(op.table);
    if table.layout.kind != MatrixKind::Float(FloatKind::F32) {
        return Err(unsupported("embed"));
    }
    let n_cols = narrow(op.out.head_dim);
    for piece in &table.pieces {
        let params = EmbedParams {
            out: compiler.view(&op.out),
            n_cols,
            first_token: piece.first_row,
            n_tokens: piece.n_rows,
            codes: piece.codes,
        };
        let grid = Grid::new(Extent::fixed(n_cols.div_ceil(N_COLS)), Extent::rows(1));
        compiler.step(&shader(), &params, grid)?.weights(piece.arena);
    }
    Ok(())
}
