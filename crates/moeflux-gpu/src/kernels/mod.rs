//! The ops as kernels: a Rust file and a WGSL file each.
//!
//! `compile` of a file turns its op into steps; its [`Kernel`] says what it covers, and lists
//! shaders so that tests can look at all of them without a GPU.
//! **Invariant:** a kernel knows its op alone; what several ops do together stands in `fuse.rs`.

mod add;
mod attend;
mod attention;
mod best;
mod causal_conv;
mod combine;
mod coop_tile;
mod decode_matrix;
mod delta_gates;
mod embed;
mod expert_ffn;
pub(crate) mod fuse;
mod fused_delta;
mod fused_down;
mod fused_heads;
mod fused_products;
mod fused_route;
mod gated_delta;
mod head_matmul;
mod l2_norm;
mod matmul;
mod matvec;
mod mla_attention;
mod reduce;
mod rms_norm;
mod rope;
mod route;
mod select_rows;
mod swiglu;
#[cfg(test)]
mod tests;
mod tile;

pub(crate) use route::guess_cols;

use moeflux::error::{Error, Result};
use moeflux::ops::Op;

use crate::compiler::Compiler;
use crate::params::Fields;
use crate::shader::Shader;

/// What the file of an op says of itself.
pub(crate) struct Kernel {
    /// As [`Op::name`] calls it.
    pub(crate) op: &'static str,
    /// Its shaders: one of each text that differs in more than a constant, and of each constant
    /// that changes what is compiled.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at all shaders"))]
    pub(crate) shaders: fn() -> Vec<Shader>,
    /// Names and places of the fields of each shader's `Params`, by the shader's name.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare them with naga's"))]
    pub(crate) params: fn() -> Vec<(&'static str, Fields)>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("op", &self.op).finish()
    }
}

/// All kernels.
#[cfg_attr(not(test), expect(dead_code, reason = "tests look at all shaders"))]
pub(crate) const KERNELS: [Kernel; 18] = [
    embed::KERNEL,
    select_rows::KERNEL,
    rms_norm::KERNEL,
    l2_norm::KERNEL,
    matmul::KERNEL,
    head_matmul::KERNEL,
    rope::KERNEL,
    attention::KERNEL,
    mla_attention::KERNEL,
    causal_conv::KERNEL,
    delta_gates::KERNEL,
    gated_delta::KERNEL,
    swiglu::KERNEL,
    add::KERNEL,
    route::KERNEL,
    expert_ffn::KERNEL,
    combine::KERNEL,
    best::KERNEL,
];

/// Appends the steps of an op.
pub(crate) fn compile(op: &Op, compiler: &mut Compiler<'_>) -> Result<()> {
    match op {
        Op::Embed(op) => embed::compile(op, compiler),
        Op::SelectRows(op) => select_rows::compile(op, compiler),
        Op::RmsNorm(op) => rms_norm::compile(op, compiler),
        Op::L2Norm(op) => l2_norm::compile(op, compiler),
        Op::MatMul(op) => matmul::compile(op, compiler),
        Op::HeadMatMul(op) => head_matmul::compile(op, compiler),
        Op::Rope(op) => rope::compile(op, compiler),
        Op::Attention(op) => attention::compile(op, compiler),
        Op::MlaAttention(op) => mla_attention::compile(op, compiler),
        Op::CausalConv(op) => causal_conv::compile(op, compiler),
        Op::DeltaGates(op) => delta_gates::compile(op, compiler),
        Op::GatedDelta(op) => gated_delta::compile(op, compiler),
        Op::SwiGlu(op) => swiglu::compile(op, compiler),
        Op::Add(op) => add::compile(op, compiler),
        Op::Route(op) => route::compile(op, compiler),
        Op::ExpertFfn(op) => expert_ffn::compile(op, compiler),
        Op::Combine(op) => combine::compile(op, compiler),
        Op::Best(op) => best::compile(op, compiler),
        other => Err(unsupported(other.name())),
    }
}

/// What an op without a kernel gives.
fn unsupported(op: &str) -> Error {
    Error::Unsupported(format!("the GPU backend has no kernel for {op} yet; --backend cpu has"))
}
