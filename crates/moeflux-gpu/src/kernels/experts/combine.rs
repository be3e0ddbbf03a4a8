//! [`Combine`]: one invocation per value adds the outputs of the chosen experts.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Combine;

use super::expert_ffn::partials;
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{NONE, Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "combine",
    shaders: || {
        [SharedExpertTerm::None, SharedExpertTerm::Plain, SharedExpertTerm::Gated]
            .map(shader)
            .to_vec()
    },
};

/// Invocations of a workgroup, one column each.
const N_INVOCATIONS: u32 = 64;

params! {
    struct CombineParams {
        /// Head `k` is the output of the expert of rank `k`.
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

/// Contribution of the shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedExpertTerm {
    None,
    Plain,
    Gated,
}

pub(crate) const fn shared_of(op: &Combine) -> SharedExpertTerm {
    match (&op.shared, &op.shared_gate) {
        (None, _) => SharedExpertTerm::None,
        (Some(_), None) => SharedExpertTerm::Plain,
        (Some(_), Some(_)) => SharedExpertTerm::Gated,
    }
}

fn shader(shared: SharedExpertTerm) -> Shader {
    Shader::new("combine", CombineParams::WGSL, include_str!("combine.wgsl"))
        .with("N_INVOCATIONS", N_INVOCATIONS)
        .with("HAS_SHARED", shared != SharedExpertTerm::None)
        .with("HAS_GATE", shared == SharedExpertTerm::Gated)
}

pub(crate) fn compile(op: &Combine, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_cols = op.out.head_dim;
    let place = |heads: &Option<_>| heads.as_ref().map_or(NOWHERE, |it| compiler.view(it));
    let (shared_out, shared_gate) = (place(&op.shared), place(&op.shared_gate));
    let residual = place(&op.residual);
    let params = CombineParams {
        partials: partials(compiler, n_cols)?,
        shared_out,
        shared_gate,
        residual,
        out: compiler.view(&op.out),
        n_cols: narrow(n_cols),
        top_k: narrow(compiler.route().top_k),
    };
    let grid =
        Grid::new(GridExtent::fixed(narrow(n_cols).div_ceil(N_INVOCATIONS)), GridExtent::rows(1));
    compiler.step(&shader(shared_of(op)), &params, grid)?;
    Ok(())
}
