//! [`GatedDelta`]: one workgroup per value head and strip of values, over all rows of a segment.
//!
//! Adjacent values are processed by adjacent groups of invocations, which share the keys of a
//! value. A block of rows is loaded into workgroup memory at once, so that the loop over tokens
//! does not wait for each.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{DeltaShape, GatedDelta};
use moeflux::provider::spec::HeadOrder;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent, Over};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "gated_delta",
    shaders: || {
        let shape = DeltaShape { key_dim: 128, value_dim: 128 };
        let all = [KeyLanes::Subgroup(8), KeyLanes::Subgroup(4), KeyLanes::Shared];
        all.map(|key_lanes| shader(key_lanes, 32, shape)).to_vec()
    },
};

/// Rows loaded together, and the upper bound on workgroup memory for their keys and queries.
const N_ROWS_BLOCK: usize = 8;
const BLOCK_BYTES_MAX: usize = 12 << 10;

params! {
    struct GatedDeltaParams {
        q: View,
        k: View,
        v: View,
        decay: View,
        beta: View,
        out: View,
        /// Adjacent value heads that share a key head.
        n_shared: u32,
        n_key_heads: u32,
    }
}

/// The invocations that share the keys of one value.
#[derive(Clone, Copy)]
enum KeyLanes {
    /// Neighbours in a subgroup.
    Subgroup(u32),
    /// Eight, through workgroup memory.
    Shared,
}

impl KeyLanes {
    fn on(compiler: &PlanCompiler<'_>) -> Self {
        match compiler.subgroup_sizes() {
            Some((8.., ..=128)) => Self::Subgroup(8),
            Some((4.., ..=128)) => Self::Subgroup(4),
            _ => Self::Shared,
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Subgroup(n) => n,
            Self::Shared => 8,
        }
    }
}

fn shader(key_lanes: KeyLanes, n_heads: usize, shape: DeltaShape) -> Shader {
    let fragment = match key_lanes {
        KeyLanes::Subgroup(_) => include_str!("reduce_keys_subgroup.wgsl"),
        KeyLanes::Shared => include_str!("reduce_keys_shared.wgsl"),
    };
    let n_key_lanes = key_lanes.number() as usize;
    let n_own = shape.key_dim.div_ceil(4 * n_key_lanes);
    let row_bytes = 2 * n_own * n_key_lanes * 16;
    let n_rows = N_ROWS_BLOCK.min(BLOCK_BYTES_MAX / row_bytes).max(1);
    Shader::new("gated_delta", GatedDeltaParams::WGSL, include_str!("gated_delta.wgsl"))
        .with("N_HEADS", narrow(n_heads))
        .with("KEY_DIM", narrow(shape.key_dim))
        .with("VALUE_DIM", narrow(shape.value_dim))
        .with("STRIP", narrow(DeltaShape::STRIP))
        .with("N_KEY_LANES", key_lanes.number())
        .with("N_OWN", narrow(n_own))
        .with("N_ROWS", narrow(n_rows))
        .fragment(fragment)
        .state(VectorWidth::One)
}

pub(crate) fn compile(op: &GatedDelta, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = GatedDeltaParams {
        q: compiler.view(&op.q),
        k: compiler.view(&op.k),
        v: compiler.view(&op.v),
        decay: compiler.view(&op.decay),
        beta: compiler.view(&op.beta),
        out: compiler.view(&op.out),
        n_shared: match op.order {
            HeadOrder::Grouped => narrow(op.v.n_heads / op.k.n_heads),
            HeadOrder::Tiled => 1,
        },
        n_key_heads: narrow(op.k.n_heads),
    };
    let shape = DeltaShape { key_dim: op.k.head_dim, value_dim: op.v.head_dim };
    let n_strips = shape.value_dim.div_ceil(DeltaShape::STRIP);
    let grid =
        Grid::new(GridExtent::fixed(narrow(n_strips)), GridExtent::fixed(narrow(op.v.n_heads)));
    let shader = shader(KeyLanes::on(compiler), op.v.n_heads, shape);
    compiler.step(&shader, &params, grid)?.over(Over::State(op.layer));
    Ok(())
}
