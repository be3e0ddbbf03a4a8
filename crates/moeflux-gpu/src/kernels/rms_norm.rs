//! [`RmsNorm`]: one workgroup per head of a row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::RmsNorm;

use super::Kernel;
use super::reduce::{Sums, lanes_for};
use crate::compiler::Compiler;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel {
    op: "rms_norm",
    shaders: || {
        let variants = [(Sums::Subgroups, true), (Sums::Shared, false)];
        variants.map(|(sums, has_gate)| shader(sums, 64, has_gate)).into()
    },
};

params! {
    struct RmsNormParams {
        x: View,
        gate: View,
        out: View,
        head_dim: u32,
        /// Shared by all heads.
        gain: u32,
        epsilon: f32,
    }
}

fn shader(sums: Sums, n_lanes: u32, has_gate: bool) -> Shader {
    let shader = Shader::new("rms_norm", RmsNormParams::WGSL, include_str!("rms_norm.wgsl"))
        .with("HAS_GATE", has_gate)
        .piece(include_str!("functions.wgsl"));
    sums.add_to(shader, n_lanes)
}

pub(super) fn compile(op: &RmsNorm, compiler: &mut Compiler<'_>) -> Result<()> {
    let params = RmsNormParams {
        x: compiler.view(&op.x),
        gate: compiler.view(&op.gate.unwrap_or(op.x)),
        out: compiler.view(&op.out),
        head_dim: narrow(op.x.head_dim),
        gain: compiler.vector(op.gain),
        epsilon: op.epsilon,
    };
    let shader = shader(Sums::on(compiler), lanes_for(op.x.head_dim), op.gate.is_some());
    let grid = Grid::new(Extent::fixed(narrow(op.x.n_heads)), Extent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
