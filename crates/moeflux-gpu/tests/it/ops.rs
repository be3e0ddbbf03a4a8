//! The suite of ops on the GPU backend.

use std::sync::Arc;

use moeflux::provider::backend::{Arithmetic, Backend};
use moeflux::provider::error::Result;
use moeflux::provider::ops::Workspace;
use moeflux::provider::weights::Weights;
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::{GpuConfig, Matrices};
use moeflux_gpu::kernels::BLOCKS;
use moeflux_kernels::BlockKind;
use moeflux_testing::gpu;
use moeflux_testing::ops::{BackendUnderTest, OpSuite, REFERENCE};

use crate::support;

/// The GPU backend, with everything that the adapter has and with the least.
struct GpuSuite;

impl OpSuite for GpuSuite {
    const BACKENDS: &'static [BackendUnderTest] = BACKENDS;
    const BLOCK_KINDS: &'static [BlockKind] = &BLOCKS;
}

moeflux_testing::test_ops!(GpuSuite);

const BACKENDS: &[BackendUnderTest] = &[
    BackendUnderTest {
        name: "gpu",
        make: |weights, sizes, _| made(weights, sizes, GpuConfig::default()),
        is_exact: false,
        steps_of_one_in: 2,
        // Several machines compute on their CPUs.
        covers: |maker| !matches!(maker.op, "expert_up" | "expert_down") && has_gpu(),
        ..REFERENCE
    },
    BackendUnderTest {
        name: "gpu, staged in half precision",
        make: |weights, sizes, _| {
            let config = GpuConfig { arithmetic: Arithmetic::F16Staged, ..GpuConfig::default() };
            made(weights, sizes, config)
        },
        is_exact: false,
        steps_of_one_in: 4,
        // Each factor has a relative error of at most 2^-11, squared 2.4e-7.
        limit: |_| 1e-5,
        // Without a unit, its kernels are those of the backend above.
        covers: |maker| {
            rounds(maker.op) && has_gpu() && support::gpu().facts().matrix_edge.is_some()
        },
        ..REFERENCE
    },
    BackendUnderTest {
        name: "gpu, staged in half precision, its matrices by other means",
        make: |weights, sizes, _| {
            let (arithmetic, matrices) = (Arithmetic::F16Staged, Matrices::Emulated);
            made(weights, sizes, GpuConfig { arithmetic, matrices, ..GpuConfig::default() })
        },
        is_exact: false,
        steps_of_one_in: 4,
        limit: |_| 1e-5,
        // Where the adapter has a unit, the backend above has tested all that is around it.
        covers: |maker| {
            rounds(maker.op) && has_gpu() && support::gpu().facts().matrix_edge.is_none()
        },
        ..REFERENCE
    },
    BackendUnderTest {
        name: "gpu, without subgroups, each op alone",
        make: |weights, sizes, _| {
            let config = GpuConfig { fuses: false, uses_subgroups: false, ..GpuConfig::default() };
            made(weights, sizes, config)
        },
        is_exact: false,
        steps_of_one_in: 4,
        covers: |maker| differs_without(maker.op) && has_gpu(),
        ..REFERENCE
    },
];

fn made(
    weights: Arc<Weights>,
    (workspace, n_rows_max): (&Workspace, usize),
    config: GpuConfig,
) -> Result<Box<dyn Backend>> {
    let config = GpuConfig { expert_bytes_max: 8 << 20, ..config };
    Ok(Box::new(GpuBackend::new(support::gpu(), &weights, workspace, n_rows_max, config)?))
}

fn has_gpu() -> bool {
    gpu::has_gpu(env!("CARGO_PKG_NAME"))
}

/// Whether an op has other kernels without subgroups, or is fused with others.
fn differs_without(op: &str) -> bool {
    ["rms_norm", "l2_norm", "route", "gated_delta"].contains(&op)
}

/// Whether an op has other kernels where products may be rounded.
fn rounds(op: &str) -> bool {
    ["matmul", "expert_ffn"].contains(&op)
}
