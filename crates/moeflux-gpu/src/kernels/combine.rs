//! [`Combine`]: one invocation per value adds what the chosen experts left.

use moeflux::error::Result;
use moeflux::ops::Combine;

use super::Kernel;
use super::expert_ffn::partials;
use crate::compiler::Compiler;
use crate::memory::narrow;
use crate::params::{NONE, Params as _, View, params};
use crate::shader::Shader;
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel {
    op: "combine",
    is_done: true,
    shaders: || [[false, false], [true, false], [true, true]].map(shader).to_vec(),
    params: || vec![("combine", CombineParams::fields())],
};

/// Invocations of a workgroup, each for one column.
const N_INVOCATIONS: u32 = 64;

params! {
    struct CombineParams {
        /// Head `k` is what the expert of rank `k` gave.
        partials: View,
        shared_out: View,
        shared_gate: View,
        residual: View,
        out: View,
        n_cols: u32,
        top_k: u32,
    }
}

const NOWHERE: View = View { first: NONE, row_stride: 0, head_stride: 0 };

fn shader([has_shared, has_gate]: [bool; 2]) -> Shader {
    Shader::new("combine", include_str!("combine.wgsl"))
        .with("N_INVOCATIONS", N_INVOCATIONS)
        .with("HAS_SHARED", has_shared)
        .with("HAS_GATE", has_gate)
}

pub(super) fn compile(op: &Combine, compiler: &mut Compiler<'_>) -> Result<()> {
    let n_cols = op.out.head_dim;
    let place = |heads: &Option<_>| heads.as_ref().map_or(NOWHERE, |it| compiler.view(it));
    let (shared_out, shared_gate) = (place(&op.shared), place(&op.shared_gate));
    let params = CombineParams {
        partials: partials(compiler, n_cols)?,
        shared_out,
        shared_gate,
        residual: compiler.view(&op.residual),
        out: compiler.view(&op.out),
        n_cols: narrow(n_cols),
        top_k: narrow(compiler.route().top_k),
    };
    let shader = shader([op.shared.is_some(), op.shared_gate.is_some()]);
    let grid = Grid::new(Extent::fixed(narrow(n_cols).div_ceil(N_INVOCATIONS)), Extent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
