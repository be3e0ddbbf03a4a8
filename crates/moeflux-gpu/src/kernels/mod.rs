//! Compiles a plan into steps: one kernel per op, each with a Rust file and a WGSL file.
//!
//! The `compile` function of a file turns its op into steps. Its `Kernel` names the op and lists
//! the shaders, so that tests can check all of them without a GPU. **Invariant:** a kernel knows
//! its op alone; fusion of several ops is in `fuse.rs`.

mod shared;
mod products;
mod elementwise;
mod norms;
mod streams;
mod attention;
mod delta;
mod selection;
mod experts;
mod fuse;
#[cfg(test)]
mod tests;

pub(crate) use selection::route::guess_cols;

use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ops::{Op, Plan};
use moeflux_kernels::{BlockKind, MatrixKind};

use crate::compiler::PlanCompiler;
use crate::shader::Shader;

/// Entry of an op, or of several fused ops.
pub(crate) struct Kernel {
    /// [`Op::name`], or the name of the shader for several ops.
    pub(crate) op: &'static str,
    /// Its shaders: one for each text that differs in more than a constant, and for each constant
    /// that changes the compiled code.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at all shaders"))]
    pub(crate) shaders: fn() -> Vec<Shader>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("op", &self.op).finish()
    }
}

/// All kernels.
#[cfg_attr(not(test), expect(dead_code, reason = "tests look at all shaders"))]
pub(crate) const KERNELS: [Kernel; 29] = [
    elementwise::embed::KERNEL,
    elementwise::select_rows::KERNEL,
    norms::rms_norm::KERNEL,
    norms::layer_norm::KERNEL,
    norms::l2_norm::KERNEL,
    products::matmul::KERNEL,
    products::head_matmul::KERNEL,
    attention::rope::KERNEL,
    attention::kv_attention::KERNEL,
    attention::select_positions::KERNEL,
    attention::mla_attention::KERNEL,
    delta::causal_conv::KERNEL,
    delta::delta_gates::KERNEL,
    delta::gated_delta::KERNEL,
    elementwise::swiglu::KERNEL,
    elementwise::add::KERNEL,
    streams::activate::KERNEL,
    streams::head_dot::KERNEL,
    streams::stream_read::KERNEL,
    streams::stream_write::KERNEL,
    selection::route::KERNEL,
    experts::expert_ffn::KERNEL,
    experts::combine::KERNEL,
    selection::best::KERNEL,
    delta::fused_delta::KERNEL,
    experts::fused_down::KERNEL,
    attention::fused_heads::KERNEL,
    products::fused_products::KERNEL,
    selection::fused_route::KERNEL,
];

/// The kinds of blocks that kernels read, indexed by their numbers there. Models with other kinds
/// of [`BlockKind::ALL`] run on the CPU.
pub const BLOCKS: [BlockKind; 14] = [
    BlockKind::Q4_0,
    BlockKind::Q4_1,
    BlockKind::Q5_0,
    BlockKind::Q5_1,
    BlockKind::Q8_0,
    BlockKind::Q4_K,
    BlockKind::Q5_K,
    BlockKind::Q6_K,
    BlockKind::IQ2_XXS,
    BlockKind::IQ3_XXS,
    BlockKind::IQ4_NL,
    BlockKind::IQ4_XS,
    BlockKind::MXFP4,
    BlockKind::MXFP4_APART,
];

/// Returns whether kernels read weights of this kind.
pub(crate) fn reads(kind: MatrixKind) -> bool {
    match kind {
        MatrixKind::Float(_) | MatrixKind::Fp8(_) | MatrixKind::Affine(_) => true,
        MatrixKind::Block(block) => BLOCKS.contains(&block),
    }
}

/// Appends the steps of a plan.
///
/// # Errors
///
/// [`Error::Device`] if an op has no kernel or its shape is unsupported; [`Error::NoRoom`] if
/// scratch cannot be allocated; [`Error::Unsupported`] if the layout of a layer's experts is
/// unknown.
pub(crate) fn compile_plan(plan: &Plan, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let fuses = compiler.config().fuses;
    let ops = if fuses { fuse::ordered(plan.ops()) } else { plan.ops().to_vec() };
    let mut rest = ops.as_slice();
    while let Some((op, after)) = rest.split_first() {
        let n_fused = if fuses { fuse::compile_fused(rest, compiler)? } else { 0 };
        if n_fused == 0 {
            compile(op, compiler)?;
            rest = after;
        } else {
            rest = &rest[n_fused..];
        }
    }
    Ok(())
}

/// Appends the unfused steps of ops, for at least `n_rows_least` rows; a fused step covers fewer.
///
/// # Errors
///
/// As [`compile_plan`].
fn compile_unfused(ops: &[Op], compiler: &mut PlanCompiler<'_>, n_rows_least: u32) -> Result<()> {
    let first = compiler.steps.len();
    for op in ops {
        compile(op, compiler)?;
    }
    for mut step in compiler.steps.split_off(first) {
        let rows = n_rows_least.max(*step.n_rows.start())..=*step.n_rows.end();
        if !rows.is_empty() {
            step.when(rows);
            compiler.steps.push(step);
        }
    }
    Ok(())
}

/// Appends the steps of an op.
///
/// # Errors
///
/// As [`compile_plan`].
fn compile(op: &Op, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    match op {
        Op::Embed(op) => elementwise::embed::compile(op, compiler),
        Op::SelectRows(op) => elementwise::select_rows::compile(op, compiler),
        Op::RmsNorm(op) => norms::rms_norm::compile(op, compiler),
        Op::LayerNorm(op) => norms::layer_norm::compile(op, compiler),
        Op::L2Norm(op) => norms::l2_norm::compile(op, compiler),
        Op::MatMul(op) => products::matmul::compile(op, compiler),
        Op::HeadMatMul(op) => products::head_matmul::compile(op, compiler),
        Op::Rope(op) => attention::rope::compile(op, compiler),
        Op::Attention(op) => attention::kv_attention::compile(op, compiler),
        Op::SelectPositions(op) => attention::select_positions::compile(op, compiler),
        Op::MlaAttention(op) => attention::mla_attention::compile(op, compiler),
        Op::CausalConv(op) => delta::causal_conv::compile(op, compiler),
        Op::DeltaGates(op) => delta::delta_gates::compile(op, compiler),
        Op::GatedDelta(op) => delta::gated_delta::compile(op, compiler),
        Op::SwiGlu(op) => elementwise::swiglu::compile(op, compiler),
        Op::Add(op) => elementwise::add::compile(op, compiler),
        Op::Activate(op) => streams::activate::compile(op, compiler),
        Op::HeadDot(op) => streams::head_dot::compile(op, compiler),
        Op::StreamRead(op) => streams::stream_read::compile(op, compiler),
        Op::StreamWrite(op) => streams::stream_write::compile(op, compiler),
        Op::Route(op) => selection::route::compile(op, compiler),
        Op::ExpertFfn(op) => experts::expert_ffn::compile(op, compiler),
        Op::Combine(op) => experts::combine::compile(op, compiler),
        Op::TopK(op) => selection::best::compile(op, compiler),
        other => Err(unsupported(other.name())),
    }
}

/// Returns the error for an op without a kernel.
fn unsupported(op: &str) -> Error {
    let (device, problem) = ("the GPU backend".to_owned(), format!("has no kernel for {op} yet"));
    Error::Device { device, problem, remedy: Some(Remedy::Cpu) }
}
