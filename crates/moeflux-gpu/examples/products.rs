//! Measures the speed of products on the first adapter: bytes of weights per second for single
//! rows, operations per second for many.
//!
//! Each line measures many dispatches over matrices that together exceed the cache, each read from
//! end to end. The time includes the overhead of a dispatch, as it does in a model.
#![expect(clippy::print_stdout, reason = "printing is the purpose")]
#![expect(clippy::disallowed_methods, reason = "it measures real time")]

use std::time::Instant;

use moeflux::provider::backend::{Arithmetic, Backend, ExpertTiers};
use moeflux::provider::error::Result;
use moeflux::provider::ids::{BufferId, ExpertIdx, LayerIdx, MatrixId, Position, TokenId};
use moeflux::provider::ops::{
    Batch, Combine, Embed, ExpertFfn, Heads, MatMul, Op, Plan, Purpose, Route, RouterKind, Row,
    Workspace,
};
use moeflux::provider::weights::{ExpertView, OwnedMatrix, Weights};
use moeflux_gpu::adapter::adapters;
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::GpuConfig;
use moeflux_gpu::device::Gpu;
use moeflux_gpu::kernels::BLOCKS;
use moeflux_kernels::{Affine, FloatKind, Fp8, MatrixKind, MatrixLayout};

/// Number of tokens with distinct table rows.
const N_TOKENS: usize = 16;
/// Bytes of matrices that are read in turn.
const SPREAD_BYTES: usize = 400 << 20;
/// Approximate duration of a measurement, in seconds.
const SECONDS: f64 = 0.5;

fn main() -> Result<()> {
    let adapters = adapters();
    let Some(adapter) = adapters.first() else {
        println!("no GPU");
        return Ok(());
    };
    let gpu = Gpu::open(adapter)?;
    println!("{}, subgroups {:?}", gpu.facts(), gpu.facts().subgroup_sizes);
    let affine = |bits, group| MatrixKind::Affine(Affine::new(bits, group, FloatKind::Bf16));
    let is_small = std::env::args().any(|arg| arg == "--small");
    let scale = if is_small { 8 } else { 1 };
    let vectors = [
        (affine(4, 64), 8192, 2048),
        (affine(4, 64), 2048, 2048),
        (affine(4, 64), 512, 2048),
        (affine(4, 64), 2048, 4096),
        (affine(4, 64), 16384, 4096),
        (affine(4, 64), 248_320, 2048),
        (affine(8, 64), 8192, 2048),
        (affine(8, 64), 248_320, 2048),
        (affine(3, 64), 8192, 2048),
        (affine(6, 64), 8192, 2048),
        (MatrixKind::Float(FloatKind::Bf16), 8192, 2048),
        (MatrixKind::Float(FloatKind::Bf16), 256, 2048),
        (MatrixKind::Fp8(Fp8::DEEPSEEK), 8192, 2048),
    ];
    // `--many` skips the shapes of a single answer; `--blocks` measures blocks of GGUF files.
    let leaves_out = std::env::args().any(|arg| arg == "--many" || arg == "--blocks");
    let n_vectors = if leaves_out { 0 } else { vectors.len() };
    for (kind, outputs, inputs) in vectors.into_iter().take(n_vectors) {
        let layout = MatrixLayout { kind, n_rows: outputs / scale, n_cols: inputs };
        products(&gpu, layout, &[1, 4, 8], scale)?;
    }
    if std::env::args().any(|arg| arg == "--blocks") {
        return blocks(&gpu, scale);
    }
    for (outputs, inputs) in [(8192_usize, 2048), (2048, 4096), (512, 2048), (1, 2048)] {
        let layout =
            MatrixLayout { kind: affine(4, 64), n_rows: outputs.div_ceil(scale), n_cols: inputs };
        products(&gpu, layout, &[32, 128, 512, 2048 / scale], scale)?;
    }
    for n_rows in [1, 4, 64, 512, 2048 / scale] {
        experts(&gpu, affine(4, 64), (256 / scale, 8), n_rows)?;
    }
    Ok(())
}

/// Prints the times of blocks of GGUF files beside those of affine codes. Q4_K has as many bytes as
/// 4 bits in groups of 64.
fn blocks(gpu: &std::sync::Arc<Gpu>, scale: usize) -> Result<()> {
    let affine = Affine::new(4, 64, FloatKind::Bf16);
    let kinds = std::iter::once(MatrixKind::Affine(affine)).chain(BLOCKS.map(MatrixKind::Block));
    for kind in kinds {
        let many = 512 / scale;
        for (outputs, inputs, rows) in [
            (8192, 2048, [1, 8, many].as_slice()),
            (2048, 4096, &[1, 8, many]),
            (248_320, 2048, &[1, 8]),
        ] {
            let layout = MatrixLayout { kind, n_rows: outputs / scale, n_cols: inputs };
            products(gpu, layout, rows, scale)?;
        }
        for n_rows in [1, 64, many] {
            experts(gpu, kind, (256 / scale, 8), n_rows)?;
        }
    }
    Ok(())
}

/// Returns the configuration; `--precise` measures the kernels in f32.
fn config() -> GpuConfig {
    let is_precise = std::env::args().any(|arg| arg == "--precise");
    let arithmetic = if is_precise { Arithmetic::F32 } else { Arithmetic::F16Staged };
    GpuConfig { arithmetic, ..GpuConfig::default() }
}

/// Prints the times of products with one kind of matrix.
fn products(
    gpu: &std::sync::Arc<Gpu>,
    layout: MatrixLayout,
    rows: &[usize],
    scale: usize,
) -> Result<()> {
    let n_matrices = (SPREAD_BYTES / scale / scale / layout.total_bytes()).clamp(1, 64);
    let mut weights = Weights::default();
    let mut workspace = Workspace::default();
    let (x, embed) = input(&mut weights, &mut workspace, layout.n_cols)?;
    let out = workspace.buffer("out", layout.n_rows);
    let mut ops = Vec::new();
    for seed in 0..n_matrices {
        let weight = weights.push_matrix(filled(layout, seed)?);
        ops.push(Op::MatMul(MatMul { weight, bias: None, x, out }));
    }
    let n_rows_max = rows.iter().copied().max().unwrap_or(1);
    let mut backend =
        GpuBackend::new(std::sync::Arc::clone(gpu), &weights, &workspace, n_rows_max, config())?;
    for &n_rows in rows {
        submit(&mut backend, &embed, n_rows)?;
        let seconds = seconds_of(&mut backend, &Plan::new(ops.clone()), n_rows, out.buffer)?
            / ops.len() as f64;
        let bytes = layout.total_bytes() as f64;
        let flops = 2.0 * (layout.n_rows * layout.n_cols * n_rows) as f64;
        println!(
            "{:>7} {:>6} x {:<5} {n_rows:>4} rows: {:>9.2} us, {:>7.1} GB/s, {:>7.2} TFLOP/s",
            layout.kind.to_string(),
            layout.n_rows,
            layout.n_cols,
            seconds * 1e6,
            bytes / seconds / 1e9,
            flops / seconds / 1e12
        );
    }
    Ok(())
}

/// Prints the time of a layer's routed experts: router, gate, up, down, sum.
fn experts(
    gpu: &std::sync::Arc<Gpu>,
    kind: MatrixKind,
    (n_experts, top_k): (usize, usize),
    n_rows: usize,
) -> Result<()> {
    const N_LAYERS: usize = 3;
    let (hidden, inner) = (2048, 512);
    let mut weights = Weights::default();
    let mut workspace = Workspace::default();
    let (x, embed) = input(&mut weights, &mut workspace, hidden)?;
    let (logits, embed_logits) = input(&mut weights, &mut workspace, n_experts)?;
    let sum = workspace.buffer("sum", hidden);
    let mut ops = Vec::new();
    for layer in (0..N_LAYERS).map(LayerIdx) {
        let kind = RouterKind::Softmax { renormalise: true };
        ops.push(Op::Route(Route { logits, kind, top_k, purpose: Purpose::Compute }));
        ops.push(Op::ExpertFfn(ExpertFfn { layer, x, sum, limit: None, biases: None }));
        let (shared, shared_gate, residual, out) = (None, None, Some(x), sum);
        ops.push(Op::Combine(Combine { sum, shared, shared_gate, residual, out }));
    }
    let config = GpuConfig { expert_bytes_max: 4 << 30, ..config() };
    let gpu = std::sync::Arc::clone(gpu);
    let mut backend = GpuBackend::new(gpu, &weights, &workspace, n_rows, config)?;
    let wide = filled(MatrixLayout { kind, n_rows: inner, n_cols: hidden }, 1)?;
    let tall = filled(MatrixLayout { kind, n_rows: hidden, n_cols: inner }, 2)?;
    let view = ExpertView { gate: wide.view(), up: wide.view(), down: tall.view() };
    for layer in (0..N_LAYERS).map(LayerIdx) {
        for expert in (0..n_experts).map(ExpertIdx) {
            backend.keep_expert((layer, expert), n_experts, &view)?;
        }
    }
    submit(&mut backend, &embed, n_rows)?;
    submit(&mut backend, &embed_logits, n_rows)?;
    let seconds = seconds_of(&mut backend, &Plan::new(ops), n_rows, sum.buffer)? / N_LAYERS as f64;
    let expert_bytes = 2 * wide.view().layout().total_bytes() + tall.view().layout().total_bytes();
    let n_used = (n_rows.min(N_TOKENS) * top_k).min(n_experts);
    let flops = 6.0 * (hidden * inner * n_rows * top_k) as f64;
    println!(
        "{:>7} experts {n_rows:>4} rows: {:>9.2} us, {:>7.1} GB/s, {:>7.2} TFLOP/s",
        kind.to_string(),
        seconds * 1e6,
        (n_used * expert_bytes) as f64 / seconds / 1e9,
        flops / seconds / 1e12
    );
    Ok(())
}

/// Creates a buffer, and the plan that fills its rows by token.
fn input(weights: &mut Weights, workspace: &mut Workspace, n_cols: usize) -> Result<(Heads, Plan)> {
    let layout = MatrixLayout { kind: MatrixKind::Float(FloatKind::F32), n_rows: N_TOKENS, n_cols };
    let mut table = OwnedMatrix::zeroed(layout)?;
    let mut bits = 1_u32;
    for value in table.parts_mut().0.as_chunks_mut::<4>().0 {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = ((bits >> 8) as f32 / 8_388_608.0 - 1.0).to_le_bytes();
    }
    let table: MatrixId = weights.push_matrix(table);
    let out = workspace.buffer("input", n_cols);
    Ok((out, Plan::new(vec![Op::Embed(Embed { table, out })])))
}

/// Creates a matrix of bytes that are not special values of any kind.
fn filled(layout: MatrixLayout, seed: usize) -> Result<OwnedMatrix> {
    let mut matrix = OwnedMatrix::zeroed(layout)?;
    let (codes, scales, biases) = matrix.parts_mut();
    for part in [codes, scales, biases] {
        for (idx, byte) in part.iter_mut().enumerate() {
            let value = (idx + seed).wrapping_mul(0x9E37_79B9) >> 7;
            *byte = value.to_le_bytes()[0] & 0x3f;
        }
    }
    Ok(matrix)
}

fn submit(backend: &mut GpuBackend, plan: &Plan, n_rows: usize) -> Result<()> {
    let row = |idx: usize| {
        let token = u32::try_from(idx % N_TOKENS).unwrap_or(0);
        Row { token: TokenId(token), position: Position(idx) }
    };
    let rows: Vec<Row> = (0..n_rows).map(row).collect();
    backend.submit(plan, &Batch { rows: &rows, segments: &[], outputs: &[] })
}

/// Returns the seconds of a plan, after its kernels are compiled.
fn seconds_of(backend: &mut GpuBackend, plan: &Plan, n_rows: usize, out: BufferId) -> Result<f64> {
    let mut value = [0.0];
    let mut run = |n: u32| -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..n {
            submit(backend, plan, n_rows)?;
        }
        backend.read_row(out, 0, &mut value)?;
        Ok(begin.elapsed().as_secs_f64())
    };
    run(1)?;
    // Clocks rise while a device is busy.
    let begin = Instant::now();
    let mut once = run(1)?;
    while begin.elapsed().as_secs_f64() < SECONDS / 2.0 {
        once = run(1)?;
    }
    let n = (1..400).find(|&n| f64::from(n) * once >= SECONDS).unwrap_or(400);
    Ok(run(n)? / f64::from(n))
}
