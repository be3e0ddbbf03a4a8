//! [`CausalConv`]: one invocation per channel for few rows, one per channel and row for many.
//!
//! For many rows a second step stores the kept inputs, after all rows have read them.

use moeflux::provider::error::Result;
use moeflux::provider::ops::CausalConv;

use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent, Over};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "causal_conv", shaders: || ConvTask::ALL.map(|task| shader(task, (4, 3))).into() };

/// Invocations of a workgroup, one channel each.
const N_CHANNELS: u32 = 64;
/// Upper bound on rows that one invocation walks.
const N_ROWS_WALKED: u32 = 8;

params! {
    struct CausalConvParams {
        x: View,
        out: View,
        n_channels: u32,
        /// `[channels, taps]`.
        weight: u32,
        /// Offset of the kept inputs in a copy of the state.
        kept_at: u32,
        /// Values of a copy.
        copy_values: u32,
    }
}

/// Task of a step.
#[derive(Clone, Copy)]
enum ConvTask {
    /// Everything, for few rows.
    Walk,
    /// The outputs of many rows.
    Rows,
    /// The stored inputs of many rows.
    Keep,
}

impl ConvTask {
    const ALL: [Self; 3] = [Self::Walk, Self::Rows, Self::Keep];

    const fn name(self) -> &'static str {
        match self {
            Self::Walk => "causal_conv walk",
            Self::Rows => "causal_conv rows",
            Self::Keep => "causal_conv keep",
        }
    }

    const fn source(self) -> &'static str {
        match self {
            Self::Walk => include_str!("causal_conv_walk.wgsl"),
            Self::Rows => include_str!("causal_conv.wgsl"),
            Self::Keep => include_str!("causal_conv_keep.wgsl"),
        }
    }
}

fn shader(task: ConvTask, (n_taps, dilation): (u32, u32)) -> Shader {
    Shader::new(task.name(), CausalConvParams::WGSL, task.source())
        .with("N_CHANNELS", N_CHANNELS)
        .with("N_TAPS", n_taps)
        .with("DILATION", dilation)
        .with("N_KEPT", (n_taps - 1) * dilation)
        .fragment(include_str!("../shared/functions.wgsl"))
        .state(VectorWidth::One)
}

pub(crate) fn compile(op: &CausalConv, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let (n_channels, taps) = (narrow(op.x.head_dim), (narrow(op.n_taps), narrow(op.dilation)));
    let params = CausalConvParams {
        x: compiler.view(&op.x),
        out: compiler.view(&op.out),
        n_channels,
        weight: compiler.vector(op.weight),
        kept_at: narrow(op.kept.first),
        copy_values: narrow(op.kept.n_of_layer),
    };
    // Many rows are at least as many as are kept.
    let n_walked = N_ROWS_WALKED.max(narrow(op.n_kept()));
    let n_groups = n_channels.div_ceil(N_CHANNELS);
    for task in ConvTask::ALL {
        let (n_rows, y) = match task {
            ConvTask::Walk => (1..=n_walked, GridExtent::fixed(1)),
            ConvTask::Rows => (n_walked + 1..=u32::MAX, GridExtent::rows(1)),
            ConvTask::Keep => (n_walked + 1..=u32::MAX, GridExtent::fixed(1)),
        };
        let grid = Grid::new(GridExtent::fixed(n_groups), y);
        compiler.step(&shader(task, taps), &params, grid)?.over(Over::State(op.layer)).when(n_rows);
    }
    Ok(())
}
