//! [`Attention`]: see `attend.rs` for its steps.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Attention;

use super::attend::{AttentionKernels, WorkgroupLimits, fours};
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{NONE, Params as _, View, narrow, params};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "attention",
    shaders: || {
        let usual = kernels((2, 8), (256, 256), (false, true));
        let odd = kernels((3, 7), (37, 10), (true, false));
        let limits = |workgroup_bytes_max, subgroup_sizes| WorkgroupLimits {
            workgroup_bytes_max,
            subgroup_sizes,
        };
        let mut shaders = usual.shaders(limits(32 << 10, Some((32, 32))));
        shaders.extend(odd.shaders(limits(16 << 10, None)));
        shaders
    },
};

const NAMES: [&str; 4] = ["attention", "attention merge", "attention append", "attention of a row"];

params! {
    struct AttentionParams {
        q: View,
        k: View,
        v: View,
        gate: View,
        out: View,
        scale: f32,
        /// Upper bound on the positions that a row sees.
        window: u32,
        sinks: u32,
        n_splits: u32,
        partials: u32,
    }
}

fn kernels(
    (n_kv_heads, group): (usize, usize),
    (key_dim, value_dim): (usize, usize),
    (has_sinks, has_gate): (bool, bool),
) -> AttentionKernels {
    AttentionKernels {
        names: NAMES,
        params: AttentionParams::WGSL,
        source: include_str!("kv_attention.wgsl"),
        n_kv_heads: narrow(n_kv_heads),
        group: narrow(group),
        key_fours: fours(key_dim),
        value_fours: fours(value_dim),
        has_sinks,
        has_gate,
        n_chosen: 0,
        consts: [("KEY_DIM", narrow(key_dim)), ("VALUE_DIM", narrow(value_dim))],
    }
}

pub(crate) fn compile(op: &Attention, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let kernels = kernels(
        (op.k.n_heads, op.q.n_heads / op.k.n_heads),
        (op.k.head_dim, op.v.head_dim),
        (op.sinks.is_some(), op.gate.is_some()),
    );
    let alone = AttentionParams {
        q: compiler.view(&op.q),
        k: compiler.view(&op.k),
        v: compiler.view(&op.v),
        gate: compiler.view(&op.gate.unwrap_or(op.out)),
        out: compiler.view(&op.out),
        scale: op.scale,
        window: op.window.map_or(u32::MAX, narrow),
        sinks: op.sinks.map_or(NONE, |sinks| compiler.vector(sinks)),
        n_splits: 1,
        partials: 0,
    };
    let params = |n_splits, partials| AttentionParams { n_splits, partials, ..alone };
    kernels.compile(compiler, op.layer, params)
}
