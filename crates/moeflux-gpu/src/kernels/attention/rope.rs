//! [`Rope`]: one invocation per pair of channels.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Rope;
use moeflux::provider::spec::Pairing;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "rope", shaders: || [Pairing::Halves, Pairing::Neighbours].map(shader).to_vec() };

/// Invocations of a workgroup, one pair each.
const N_PAIRS: u32 = 64;

params! {
    struct RopeParams {
        x: View,
        n_heads: u32,
        /// Pairs of a head.
        n_pairs: u32,
        frequencies: u32,
        amplitude: f32,
        /// Positions of a block, whose rows are rotated as its first.
        block: u32,
    }
}

fn shader(pairing: Pairing) -> Shader {
    Shader::new("rope", RopeParams::WGSL, include_str!("rope.wgsl"))
        .with("N_PAIRS", N_PAIRS)
        .with("ARE_NEIGHBOURS", pairing == Pairing::Neighbours)
        .fragment(include_str!("sincos.wgsl"))
}

pub(crate) fn compile(op: &Rope, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = RopeParams {
        x: compiler.view(&op.x),
        n_heads: narrow(op.x.n_heads),
        n_pairs: narrow(op.x.head_dim / 2),
        frequencies: compiler.vector(op.frequencies),
        amplitude: op.amplitude,
        block: narrow(op.block),
    };
    let n_groups = (params.n_heads * params.n_pairs).div_ceil(N_PAIRS);
    let grid = Grid::new(GridExtent::fixed(n_groups), GridExtent::rows(1));
    compiler.step(&shader(op.pairing), &params, grid)?;
    Ok(())
}
