//! [`MatMul`]: one invocation per output. Weights of f32 so far.

use moeflux::error::Result;
use moeflux::ops::MatMul;
use moeflux_kernels::{FloatKind, MatrixKind};

use super::{Kernel, unsupported};
use crate::compiler::Compiler;
use crate::memory::narrow;
use crate::params::{NONE, Params as _, View, params};
use crate::shader::{Lanes, Shader};
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel {
    op: "matmul",
    is_done: false,
    shaders: || vec![shader()],
    params: || vec![("matmul", MatMulParams::fields())],
};

/// Invocations of a workgroup, each for one output.
const N_OUTPUTS: u32 = 64;

params! {
    struct MatMulParams {
        x: View,
        out: View,
        n_cols: u32,
        /// Outputs that lie in the bound arena.
        first_output: u32,
        n_outputs: u32,
        /// Where their rows begin, in words.
        codes: u32,
        /// Where the bias begins, or `NONE`.
        bias: u32,
    }
}

fn shader() -> Shader {
    Shader::new("matmul", include_str!("matmul.wgsl"))
        .with("N_OUTPUTS", N_OUTPUTS)
        .weights(Lanes::One)
}

pub(super) fn compile(op: &MatMul, compiler: &mut Compiler<'_>) -> Result<()> {
    let weight = compiler.matrix(op.weight);
    if weight.layout.kind != MatrixKind::Float(FloatKind::F32) {
        return Err(unsupported("matmul"));
    }
    for piece in &weight.pieces {
        let params = MatMulParams {
            x: compiler.view(&op.x),
            out: compiler.view(&op.out),
            n_cols: narrow(op.x.head_dim),
            first_output: piece.first_row,
            n_outputs: piece.n_rows,
            codes: piece.codes,
            bias: op.bias.map_or(NONE, |bias| compiler.vector(bias)),
        };
        let n_groups = piece.n_rows.div_ceil(N_OUTPUTS);
        let grid = Grid::new(Extent::fixed(n_groups), Extent::rows(1));
        compiler.step(&shader(), &params, grid)?.weights(piece.arena);
    }
    Ok(())
}
