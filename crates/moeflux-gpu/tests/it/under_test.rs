//! The GPU backend as the suite of ops sees it.

use moeflux_gpu::backend::{GpuBackend, GpuConfig};
use moeflux_gpu::kernels::is_done;

use crate::ops::{BackendUnderTest, Maker, REFERENCE};
use crate::support::gpu;

/// The backends under test.
pub(crate) const BACKENDS: &[BackendUnderTest] = &[BackendUnderTest {
    name: "gpu",
    make: |weights, (workspace, n_rows_max), _| {
        let config = GpuConfig { expert_bytes_max: 8 << 20 };
        Ok(Box::new(GpuBackend::new(gpu(), &weights, workspace, n_rows_max, config)?))
    },
    is_exact: false,
    covers,
    ..REFERENCE
}];

/// Cases whose ops have kernels. Inputs come by embeddings of f32, which there are always.
fn covers(maker: &Maker) -> bool {
    let is_there = |op: &&str| *op == "embed" || is_done(op);
    is_done(maker.op) && maker.op_names().iter().all(is_there)
}
