//! Multiplies one matrix by one row, as a step of one token does, a stated number of times: two
//! runs under valgrind differ by the instructions of the products alone.
//!
//! `cargo run --release -p moeflux-kernels --example count -- KERNEL ISA KIND N`, such as
//! `f32 avx2 q4g64 10`. Used by `tools/instructions/check.py`, which knows how many weights the
//! matrix has.

use std::process::ExitCode;

use moeflux_kernels::{
    Activations, Affine, BlockKind, FloatKind, FloatProduct, IntProduct, IntRows, IntScratch,
    KernelTable, Matrix, MatrixKind, MatrixLayout, RepackedRows, by_name,
};

/// Outputs and inputs: small, because valgrind is slow; whole blocks of every kernel.
const SHAPE: (usize, usize) = (64, 2048);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if run(&words).is_some() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

/// `None`: no such kernel, or not on this CPU.
fn run(words: &[&str]) -> Option<()> {
    let &[kernel, isa, kind, n_products] = words else { return None };
    let (table, n_products) = (by_name(isa)?, n_products.parse().ok()?);
    let layout = MatrixLayout::new(kind_named(kind)?, SHAPE.0, SHAPE.1).ok()?;
    let codes = vec![0x5a; layout.code_bytes()];
    let scales = vec![0x3c; layout.scale_bytes()];
    let biases = vec![0x3c; layout.bias_bytes()];
    let matrix = Matrix::new(layout, &codes, &scales, &biases);
    let multiply = match kernel {
        "f32" => multiply_floats,
        "int8" => multiply_integers,
        _ => return None,
    };
    multiply(table, matrix, n_products);
    Some(())
}

fn kind_named(name: &str) -> Option<MatrixKind> {
    let affine = |bits| MatrixKind::Affine(Affine::new(bits, 64, FloatKind::Bf16));
    let blocks = BlockKind::ALL.map(MatrixKind::Block);
    let mut all = [2, 3, 4, 5, 6, 8].map(affine).into_iter().chain(blocks);
    all.find(|kind| kind.to_string() == name)
}

/// A row of small numbers of both signs.
fn activations(n_cols: usize) -> Vec<f32> {
    (0..17_u8).map(|i| f32::from(i) - 8.0).cycle().take(n_cols).collect()
}

fn multiply_floats(table: &KernelTable, matrix: Matrix<'_>, n_products: usize) {
    let layout = matrix.layout();
    let mut x = Activations::new();
    x.reshape(layout.kind, 1, layout.n_cols);
    x.fill(table, 0, &activations(layout.n_cols));
    let mut out = vec![0.0; layout.n_rows];
    for _ in 0..n_products {
        let product = FloatProduct { matrix, rows: 0..layout.n_rows, x: &x, picks: &[0] };
        table.matmul(&product, &mut out);
        std::hint::black_box(&out);
    }
}

fn multiply_integers(table: &KernelTable, matrix: Matrix<'_>, n_products: usize) {
    let layout = matrix.layout();
    let (mut x, mut scratch) = (IntRows::new(), IntScratch::default());
    let mut repacked = RepackedRows::default();
    x.reshape(layout.kind, 1, layout.n_cols);
    x.fill(table, 0, &activations(layout.n_cols));
    let mut out = vec![0.0; layout.n_rows];
    for _ in 0..n_products {
        let x = table.repack(&x, &[0], &mut repacked);
        let product = IntProduct { matrix, rows: 0..layout.n_rows, x };
        table.int_matmul(&product, &mut scratch, &mut out);
        std::hint::black_box(&out);
    }
}
