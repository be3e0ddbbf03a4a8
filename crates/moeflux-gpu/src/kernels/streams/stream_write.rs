//! [`StreamWrite`]: one invocation for a column of all streams.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{StreamBase, StreamWrite};

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "stream_write", shaders: || (0..3).map(|base| shader(base, 4)).collect() };

/// Invocations of a workgroup, one column each.
const N_COLS: u32 = 64;

params! {
    struct StreamWriteParams {
        streams: View,
        mix: View,
        beta: View,
        x: View,
        out: View,
        n_cols: u32,
    }
}

fn shader(base: u32, n_streams: u32) -> Shader {
    Shader::new("stream_write", StreamWriteParams::WGSL, include_str!("stream_write.wgsl"))
        .with("N_COLS", N_COLS)
        .with("BASE", base)
        .with("N_STREAMS", n_streams)
}

pub(crate) fn compile(op: &StreamWrite, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let n_cols = narrow(op.out.head_dim);
    let (base, streams, mix) = match op.base {
        StreamBase::Nothing => (0, View::NOWHERE, View::NOWHERE),
        StreamBase::Streams(streams) => (1, compiler.view(&streams), View::NOWHERE),
        StreamBase::Mixed { streams, mix } => (2, compiler.view(&streams), compiler.view(&mix)),
    };
    let params = StreamWriteParams {
        streams,
        mix,
        beta: compiler.view(&op.beta),
        x: compiler.view(&op.x),
        out: compiler.view(&op.out),
        n_cols,
    };
    let grid = Grid::new(GridExtent::fixed(n_cols.div_ceil(N_COLS)), GridExtent::rows(1));
    compiler.step(&shader(base, narrow(op.out.n_heads)), &params, grid)?;
    Ok(())
}
