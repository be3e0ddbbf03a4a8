//! The suite of ops on the engine's backends, and how far each may be off.

use std::sync::Arc;

use moeflux::provider::backend::cpu::CpuBackend;
use moeflux::provider::backend::{Arithmetic, Backend};
use moeflux::provider::error::Result;
use moeflux::provider::ops::Workspace;
use moeflux::provider::weights::Weights;
use moeflux_kernels::{BlockKind, KernelTable};
use moeflux_testing::ops::{BackendUnderTest, ErrorSource, OpSuite, REFERENCE};

/// The backends of the engine, which read blocks of all kinds.
struct Engine;

impl OpSuite for Engine {
    const BACKENDS: &'static [BackendUnderTest] = BACKENDS;
    const BLOCK_KINDS: &'static [BlockKind] = &BlockKind::ALL;
}

moeflux_testing::test_ops!(Engine);

const BACKENDS: &[BackendUnderTest] = &[
    REFERENCE,
    BackendUnderTest {
        name: "cpu",
        make: |weights, size, kernels| cpu(weights, size, kernels, (Arithmetic::F32, 3)),
        has_tables: true,
        ..REFERENCE
    },
    BackendUnderTest {
        name: "cpu with a cache in f16",
        make: |weights, size, kernels| cpu(weights, size, kernels, (Arithmetic::Int8, 2)),
        limit: limit_of_cache_in_f16,
        has_tables: true,
        covers: |maker| maker.op.ends_with("attention"),
        ..REFERENCE
    },
    BackendUnderTest {
        name: "cpu with a cache in 8 bits",
        make: |weights, size, kernels| cpu(weights, size, kernels, (Arithmetic::Int8Kv8, 3)),
        limit: limit_of_cache_in_codes,
        has_tables: true,
        covers: |maker| maker.op.ends_with("attention") && maker.what != "large scores",
        ..REFERENCE
    },
    BackendUnderTest {
        name: "cpu with activations in int8",
        make: |weights, size, kernels| cpu(weights, size, kernels, (Arithmetic::Int8, 3)),
        limit: limit_of_int8,
        has_tables: true,
        covers: |maker| ["matmul", "head_matmul", "expert_ffn"].contains(&maker.op),
        ..REFERENCE
    },
];

fn cpu(
    weights: Arc<Weights>,
    (workspace, n_rows_max): (&Workspace, usize),
    kernels: &'static KernelTable,
    (arithmetic, n_threads): (Arithmetic, usize),
) -> Result<Box<dyn Backend>> {
    let backend = CpuBackend::new(weights, workspace, n_rows_max, n_threads)?;
    Ok(Box::new(backend.with_arithmetic(arithmetic).with_kernels(kernels)))
}

/// For keys and values rounded to half precision: one relative error of at most 2^-11 each, squared
/// 2.4e-7, a third of that on average. Those of values stay as large beside their weighted sum as
/// beside each value; those of keys reach the weights multiplied with the size of the scores,
/// which is about 1 in these cases. Where scores are large, keys are whole and exact.
fn limit_of_cache_in_f16(_: ErrorSource) -> f64 {
    5e-7
}

/// For keys and values rounded to a 255th of the range of their group: for normal values in groups
/// of 64, which are 4.7 deviations apart, (4.7 / 255)^2 / 12 = 3e-5 of their mean square, and for
/// queries in int8 as much. Both reach the weights multiplied with the size of the scores, which is
/// about 1 in these cases; for large scores there is no bound.
fn limit_of_cache_in_codes(_: ErrorSource) -> f64 {
    5e-4
}

/// For products with activations rounded to a 127th of the largest of their group: for normal
/// values in groups of 128, whose largest is 2.8 deviations, an error of (2.8 / 127)^2 / 12 = 4e-5
/// of their mean square.
fn limit_of_int8(error_source: ErrorSource) -> f64 {
    match error_source {
        ErrorSource::Copy => 0.0,
        ErrorSource::Pointwise => 1e-12,
        ErrorSource::Sum => 2e-4,
        // Two products, and a gate between them that multiplies errors.
        ErrorSource::Chain => 1e-3,
    }
}
