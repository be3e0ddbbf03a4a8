//! The norms of queries and keys and their rope, as one step for any number of rows: one workgroup
//! per head of a row.
//!
//! **Invariant:** values are as after each op; the output of the norms is written once.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Gain, Op, RmsNorm, Rope};
use moeflux::provider::spec::Pairing;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{Params, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: NAME, shaders };

/// Name of the shader.
const NAME: &str = "norm and rope of heads";

/// Upper bound on the columns of a head: they are kept in workgroup memory.
const N_COLS_MAX: usize = 1024;

params! {
    struct NormAndRopeParams {
        q: View,
        k: View,
        q_out: View,
        k_out: View,
        n_q_heads: u32,
        q_gain: u32,
        k_gain: u32,
        epsilon: f32,
        /// First column that is rotated.
        first_col: u32,
        n_pairs: u32,
        frequencies: u32,
        amplitude: f32,
    }
}

/// Two norms and two ropes, each after the norm of its heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormAndRope<'a> {
    norms: [&'a RmsNorm; 2],
    ropes: [&'a Rope; 2],
}

impl<'a> NormAndRope<'a> {
    /// Number of ops.
    pub(crate) const N_OPS: usize = 4;

    /// Returns the first ops of a list, if they are these.
    pub(crate) fn of(ops: &'a [Op]) -> Option<Self> {
        let [Op::RmsNorm(q_norm), Op::RmsNorm(k_norm), Op::Rope(q_rope), Op::Rope(k_rope), ..] =
            ops
        else {
            return None;
        };
        let heads = Self { norms: [q_norm, k_norm], ropes: [q_rope, k_rope] };
        heads.are_alike().then_some(heads)
    }

    fn are_alike(&self) -> bool {
        let Self { norms: [q, k], ropes: [q_rope, k_rope] } = self;
        let first_col = q_rope.x.first_col.checked_sub(q.out.first_col);
        let turns_norm = |norm: &RmsNorm, rope: &Rope| {
            first_col.is_some_and(|first_col| {
                let (dim, turned) = (norm.out.head_dim, rope.x.head_dim);
                first_col + turned <= dim && rope.x == norm.out.narrow(first_col, turned)
            })
        };
        q.gate.is_none()
            && k.gate.is_none()
            && [q, k].iter().all(|norm| matches!(norm.gain, Gain::Shared(_)))
            && q.x.head_dim == k.x.head_dim
            && q.x.head_dim <= N_COLS_MAX
            // The norm of the keys must not depend on that of the queries.
            && k.x.buffer != q.out.buffer
            && q.x.buffer != k.out.buffer
            && q.epsilon.to_bits() == k.epsilon.to_bits()
            && turns_norm(q, q_rope)
            && turns_norm(k, k_rope)
            && q_rope.frequencies == k_rope.frequencies
            && q_rope.pairing == k_rope.pairing
            && q_rope.amplitude.to_bits() == k_rope.amplitude.to_bits()
    }

    /// Appends the step.
    pub(crate) fn compile_fused(&self, compiler: &mut PlanCompiler<'_>) -> Result<()> {
        let Self { norms: [q, k], ropes: [rope, _] } = self;
        let params = NormAndRopeParams {
            q: compiler.view(&q.x),
            k: compiler.view(&k.x),
            q_out: compiler.view(&q.out),
            k_out: compiler.view(&k.out),
            n_q_heads: narrow(q.x.n_heads),
            q_gain: compiler.vector(q.gain.vector()),
            k_gain: compiler.vector(k.gain.vector()),
            epsilon: q.epsilon,
            first_col: narrow(rope.x.first_col - q.out.first_col),
            n_pairs: narrow(rope.x.head_dim / 2),
            frequencies: compiler.vector(rope.frequencies),
            amplitude: rope.amplitude,
        };
        let shader = shader(ReductionMethod::on(compiler), q.x.head_dim, rope.pairing);
        let n_heads = GridExtent::fixed(narrow(q.x.n_heads + k.x.n_heads));
        compiler.step(&shader, &params, Grid::new(n_heads, GridExtent::rows(1)))?;
        Ok(())
    }
}

fn shader(reduction: ReductionMethod, head_dim: usize, pairing: Pairing) -> Shader {
    let shader = Shader::new(NAME, NormAndRopeParams::WGSL, include_str!("fused_heads.wgsl"))
        .with("HEAD_DIM", narrow(head_dim))
        .with("ARE_NEIGHBOURS", pairing == Pairing::Neighbours)
        .fragment(include_str!("sincos.wgsl"));
    reduction.add_to(shader, lanes_for(head_dim))
}

fn shaders() -> Vec<Shader> {
    vec![
        shader(ReductionMethod::Subgroups, 256, Pairing::Halves),
        shader(ReductionMethod::Shared, 128, Pairing::Neighbours),
    ]
}
