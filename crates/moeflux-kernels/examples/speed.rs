//! Prints how fast each table multiplies: matrix times vector in GB/s of weights, and times 64
//! rows in GFLOP/s, by 1 and 2 threads.
//!
//! `cargo run --release -p moeflux-kernels --example speed -- [KIND]`, such as q4g64.
#![expect(clippy::disallowed_methods, reason = "measuring time is the purpose")]
#![expect(clippy::print_stdout, reason = "printing is the purpose")]

use std::time::Instant;

use moeflux_kernels::{
    Activations, Affine, FloatKind, KernelTable, Matrix, MatrixKind, MatrixLayout, Product,
    available,
};

const N: usize = 4096;

fn main() {
    let affine = |bits| MatrixKind::Affine(Affine { bits, group: 64, scale: FloatKind::Bf16 });
    let mut kinds: Vec<MatrixKind> = [2, 3, 4, 5, 6, 8].map(affine).to_vec();
    kinds.extend([MatrixKind::Fp8Block, MatrixKind::Float(FloatKind::Bf16)]);
    let wanted = std::env::args().nth(1);
    kinds.retain(|kind| wanted.as_ref().is_none_or(|wanted| *wanted == kind.to_string()));
    for table in available().into_iter().filter(|table| table.name() != "scalar") {
        for &kind in &kinds {
            let layout = MatrixLayout::new(kind, N, N).expect("a valid layout");
            for n_threads in [1, 2] {
                measure(table, layout, n_threads);
            }
        }
    }
}

fn measure(table: &KernelTable, layout: MatrixLayout, n_threads: usize) {
    let codes = vec![0x5a; layout.code_bytes()];
    let scales = vec![0x3c; layout.scale_bytes()];
    let biases = vec![0x3c; layout.bias_bytes()];
    let matrix = Matrix::new(layout, &codes, &scales, &biases);
    let vector_s = seconds(table, matrix, n_threads, 1);
    let batch_s = seconds(table, matrix, n_threads, 64);
    println!(
        "{:<8} {:<8} {n_threads} threads: vector {:6.2} GB/s {:6.2} GFLOP/s, \
         64 rows {:7.2} GFLOP/s",
        table.name(),
        layout.kind.to_string(),
        layout.total_bytes() as f64 / vector_s / 1e9,
        (2 * N * N) as f64 / vector_s / 1e9,
        (2 * N * N * 64) as f64 / batch_s / 1e9,
    );
}

/// The best of several runs: the machine may be shared.
fn seconds(table: &KernelTable, matrix: Matrix<'_>, n_threads: usize, n_rows: usize) -> f64 {
    let mut x = Activations::new();
    x.reshape(matrix.layout().kind, n_rows, N);
    let row: Vec<f32> = (0..N).map(|i| (i % 17) as f32 - 8.0).collect();
    for row_idx in 0..n_rows {
        x.fill(table, row_idx, &row);
    }
    let picks: Vec<usize> = (0..n_rows).collect();
    let mut out = vec![0.0; N * n_rows];
    let rows_per_thread = N / n_threads;
    let mut best_s = f64::INFINITY;
    for _ in 0..if n_rows == 1 { 200 } else { 6 } {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (i, out) in out.chunks_mut(rows_per_thread * n_rows).enumerate() {
                let rows = i * rows_per_thread..(i + 1) * rows_per_thread;
                let product = Product { matrix, rows, x: &x, picks: &picks };
                scope.spawn(move || table.matmul(&product, out));
            }
        });
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    best_s
}
