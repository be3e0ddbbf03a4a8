//! [`StreamRead`]: one invocation per value.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{StreamRead, StreamWeights};

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "stream_read", shaders: || [false, true].map(shader).into() };

/// Invocations of a workgroup, one column each.
const N_COLS: u32 = 64;

params! {
    struct StreamReadParams {
        streams: View,
        weights: View,
        out: View,
        n_streams: u32,
        n_cols: u32,
    }
}

fn shader(has_weight_per_value: bool) -> Shader {
    Shader::new("stream_read", StreamReadParams::WGSL, include_str!("stream_read.wgsl"))
        .with("N_COLS", N_COLS)
        .with("PER_VALUE", has_weight_per_value)
}

pub(crate) fn compile(op: &StreamRead, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_cols = narrow(op.out.head_dim);
    let params = StreamReadParams {
        streams: compiler.view(&op.streams),
        weights: compiler.view(&op.weights.heads()),
        out: compiler.view(&op.out),
        n_streams: narrow(op.streams.n_heads),
        n_cols,
    };
    let shader = shader(matches!(op.weights, StreamWeights::PerValue(_)));
    let grid = Grid::new(GridExtent::fixed(n_cols.div_ceil(N_COLS)), GridExtent::rows(1));
    compiler.step(&shader, &params, grid)?;
    Ok(())
}
