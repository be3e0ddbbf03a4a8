//! [`MlaAttention`] in absorbed form: see `attend.rs` for its steps.

use moeflux::provider::error::Result;
use moeflux::provider::ops::MlaAttention;

use super::attend::{AttentionKernels, WorkgroupLimits, fours};
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "mla_attention",
    shaders: || {
        let limits = |workgroup_bytes_max, subgroup_sizes| WorkgroupLimits {
            workgroup_bytes_max,
            subgroup_sizes,
        };
        let mut shaders = kernels(128, (512, 64)).shaders(limits(32 << 10, Some((32, 32))));
        shaders.extend(kernels(5, (30, 7)).shaders(limits(16 << 10, Some((4, 8)))));
        let chosen = AttentionKernels { n_chosen: 2048, ..kernels(64, (512, 64)) };
        shaders.extend(chosen.shaders(limits(32 << 10, Some((32, 32)))));
        shaders
    },
};

const NAMES: [&str; 4] =
    ["mla_attention", "mla_attention merge", "mla_attention append", "mla_attention of a row"];

params! {
    struct MlaAttentionParams {
        q_latent: View,
        q_rope: View,
        latent: View,
        k_rope: View,
        out: View,
        /// Positions that the rows attend to, if they are chosen.
        list: View,
        scale: f32,
        n_splits: u32,
        partials: u32,
    }
}

fn kernels(n_heads: usize, (latent_dim, rope_dim): (usize, usize)) -> AttentionKernels {
    AttentionKernels {
        names: NAMES,
        params: MlaAttentionParams::WGSL,
        source: include_str!("mla_attention.wgsl"),
        n_kv_heads: 1,
        group: narrow(n_heads),
        key_fours: fours(latent_dim) + fours(rope_dim),
        value_fours: fours(latent_dim),
        has_sinks: false,
        has_gate: false,
        n_chosen: 0,
        consts: [("LATENT_DIM", narrow(latent_dim)), ("ROPE_DIM", narrow(rope_dim))],
    }
}

pub(crate) fn compile(op: &MlaAttention, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_chosen = op.chosen.map_or(0, |chosen| narrow(chosen.list.head_dim));
    let kernels = kernels(op.q_latent.n_heads, (op.latent.head_dim, op.k_rope.head_dim));
    let kernels = AttentionKernels { n_chosen, ..kernels };
    let alone = MlaAttentionParams {
        q_latent: compiler.view(&op.q_latent),
        q_rope: compiler.view(&op.q_rope),
        latent: compiler.view(&op.latent),
        k_rope: compiler.view(&op.k_rope),
        out: compiler.view(&op.out),
        list: op.chosen.map_or(View::NOWHERE, |chosen| compiler.view(&chosen.list)),
        scale: op.scale,
        n_splits: 1,
        partials: 0,
    };
    let params = |n_splits, partials| MlaAttentionParams { n_splits, partials, ..alone };
    kernels.compile(compiler, op.layer, params)
}
