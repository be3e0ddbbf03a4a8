//! How much slower the CPU multiplies floating-point weights: products of FP8 and of bf16 compared
//! with products of quantised weights.
//!
//! **Invariant:** each thread has its own matrices, which exceed its cache, and never multiplies
//! one twice in a row. The best of several rounds counts, as for the memory rate.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::thread::Builder;
use std::time::Duration;

use moeflux::STACK_BYTES;
use moeflux_io::AlignedBytes;
use moeflux_kernels::{
    Activations, Affine, FloatKind, FloatProduct, Fp8, IntProduct, IntRows, IntScratch,
    KernelTable, Matrix, MatrixKind, MatrixLayout, RepackedRows,
};

use crate::model::needs::float;
use crate::system::clock;

/// Bytes of each thread's matrices.
const PART_BYTES: usize = 48 << 20;

/// Rows and columns of a typical projection.
const SHAPE: (usize, usize) = (1024, 2048);

/// Rows of activations that an expert gets in a prompt.
const N_ROWS: usize = 64;

/// The duration of each round.
const DURATION: Duration = Duration::from_millis(60);

const N_ROUNDS: usize = 3;

/// The quantisation of most models.
const CODES: MatrixKind = MatrixKind::Affine(Affine::new(4, 64, FloatKind::Bf16));

/// The kinds of weights that are measured.
const KINDS: [MatrixKind; 3] =
    [CODES, MatrixKind::Fp8(Fp8::DEEPSEEK), MatrixKind::Float(FloatKind::Bf16)];

/// Rates of products with one row and with many.
#[derive(Clone, Copy, Debug)]
struct ProductRates {
    /// Weights read, with one row of activations.
    bytes_per_s: f64,
    /// Multiplications and additions, with many rows.
    operations_per_s: f64,
}

/// Rates of FP8 and bf16, compared with quantised weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FloatRates {
    /// The rate at which answers read FP8, as a multiple of the rate for quantised weights.
    pub(super) answer_ratio: f64,
    /// Bytes of bf16 that answers read per second, over all threads. Not relative to quantised
    /// weights: with this many bytes per weight, the rest of a token's work hardly counts.
    pub(super) plain_bytes_per_s: f64,
    /// Operations per second over all threads, with FP8 and many rows.
    pub(super) operations_per_s: f64,
}

/// Measures on `n_threads` threads.
pub(super) fn float_rates(table: &'static KernelTable, n_threads: NonZeroUsize) -> FloatRates {
    let [codes, floats, plain] = KINDS.map(|kind| rates(table, kind, n_threads.get()));
    FloatRates {
        answer_ratio: floats.bytes_per_s / codes.bytes_per_s.max(1.0),
        plain_bytes_per_s: plain.bytes_per_s.max(1.0),
        operations_per_s: floats.operations_per_s,
    }
}

fn rates(table: &'static KernelTable, kind: MatrixKind, n_threads: usize) -> ProductRates {
    let (n_outputs, n_cols) = SHAPE;
    let layout = MatrixLayout::new(kind, n_outputs, n_cols).expect("whole groups and blocks");
    let matrices_per_s = |n_rows: usize| {
        let round = || {
            let rates = std::thread::scope(|scope| {
                let spawn = |number: usize| {
                    let name = format!("moeflux-products-{number}");
                    let builder = Builder::new().name(name).stack_size(STACK_BYTES);
                    builder.spawn_scoped(scope, || multiply(table, layout, n_rows)).ok()
                };
                let threads: Vec<_> = (0..n_threads).filter_map(spawn).collect();
                threads.into_iter().filter_map(|it| it.join().ok()).collect::<Vec<f64>>()
            });
            rates.iter().sum::<f64>()
        };
        (0..N_ROUNDS).map(|_| round()).fold(0.0, f64::max)
    };
    ProductRates {
        bytes_per_s: matrices_per_s(1) * float(layout.total_bytes() as u64),
        operations_per_s: matrices_per_s(N_ROWS) * float((2 * n_outputs * n_cols * N_ROWS) as u64),
    }
}

/// Returns the matrices per second that one thread multiplies.
fn multiply(table: &'static KernelTable, layout: MatrixLayout, n_rows: usize) -> f64 {
    let Some(mut weights) = AlignedBytes::zeroed(PART_BYTES) else { return 0.0 };
    // These bytes are normal numbers in every format.
    weights.fill(0x3c);
    let n_matrices = (PART_BYTES / layout.total_bytes()).max(1);
    let mut product = Multiplier::new(table, layout, n_rows);
    let began = clock::instant();
    let mut n_done = 0_u64;
    while began.elapsed() < DURATION {
        let matrix_idx = usize::try_from(n_done).unwrap_or(0) % n_matrices;
        let bytes = &weights[matrix_idx * layout.total_bytes()..];
        let (codes, bytes) = bytes.split_at(layout.code_bytes());
        let (scales, bytes) = bytes.split_at(layout.scale_bytes());
        let matrix = Matrix::new(layout, codes, scales, &bytes[..layout.bias_bytes()]);
        product.multiply(matrix);
        n_done += 1;
    }
    float(n_done) / began.elapsed().as_secs_f64().max(1e-9)
}

/// Activations, and the buffers of a product.
struct Multiplier {
    table: &'static KernelTable,
    picks: Vec<usize>,
    out: Vec<f32>,
    floats: Activations,
    codes: IntRows,
    scratch: IntScratch,
    repacked: RepackedRows,
}

impl Multiplier {
    fn new(table: &'static KernelTable, layout: MatrixLayout, n_rows: usize) -> Self {
        let row: Vec<f32> =
            (0..17_u8).map(|i| f32::from(i) - 8.0).cycle().take(layout.n_cols).collect();
        let (mut floats, mut codes) = (Activations::new(), IntRows::new());
        let is_codes = matches!(layout.kind, MatrixKind::Affine(_));
        if is_codes {
            codes.reshape(layout.kind, n_rows, layout.n_cols);
            (0..n_rows).for_each(|row_idx| codes.fill(table, row_idx, &row));
        } else {
            floats.reshape(layout.kind, n_rows, layout.n_cols);
            (0..n_rows).for_each(|row_idx| floats.fill(table, row_idx, &row));
        }
        Self {
            table,
            picks: (0..n_rows).collect(),
            out: vec![0.0; layout.n_rows * n_rows],
            floats,
            codes,
            scratch: IntScratch::default(),
            repacked: RepackedRows::default(),
        }
    }

    fn multiply(&mut self, matrix: Matrix<'_>) {
        let Self { table, picks, out, floats, codes, scratch, repacked } = self;
        let layout = matrix.layout();
        let rows = 0..layout.n_rows;
        if matches!(layout.kind, MatrixKind::Affine(_)) {
            let x = table.repack(codes, picks, repacked);
            table.int_matmul(&IntProduct { matrix, rows, x }, scratch, out);
        } else {
            table.matmul(&FloatProduct { matrix, rows, x: floats, picks }, out);
        }
        black_box(&*out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_multiplies_codes_and_floats() {
        for table in moeflux_kernels::available() {
            for kind in KINDS {
                let layout = MatrixLayout::new(kind, 128, 256).unwrap();
                let bytes = vec![0x3c_u8; layout.total_bytes()];
                let (codes, rest) = bytes.split_at(layout.code_bytes());
                let (scales, rest) = rest.split_at(layout.scale_bytes());
                let matrix = Matrix::new(layout, codes, scales, &rest[..layout.bias_bytes()]);
                let mut product = Multiplier::new(table, layout, 3);
                product.multiply(matrix);
                let is_computed = product.out.iter().all(|it| it.is_finite() && *it != 0.0);
                assert!(is_computed, "{} {kind}", table.name());
            }
        }
    }
}
