//! Views of every second row: the same bits as matrices with contiguous rows.

use moeflux_testing::random::Rng;

use super::{EncodedMatrix, FLOATS, block_kinds, same_bits};
use crate::{
    Activations, FloatProduct, IntProduct, IntRows, IntScratch, KernelTable, Matrix, MatrixKind,
    MatrixLayout, RepackedRows, StridedRows, TransposedProduct, available, decode_row, emulated,
};

/// Returns all outputs of a product in int8; empty for floats.
pub(super) fn int_product(table: &KernelTable, matrix: Matrix<'_>, x: &[Vec<f32>]) -> Vec<f32> {
    let MatrixLayout { kind, n_rows, n_cols } = matrix.layout();
    if matches!(kind, MatrixKind::Float(_)) {
        return Vec::new();
    }
    let mut rows = IntRows::new();
    rows.reshape(kind, x.len(), n_cols);
    x.iter().enumerate().for_each(|(i, row)| rows.fill(table, i, row));
    let picks: Vec<usize> = (0..x.len()).collect();
    let mut repacked = RepackedRows::default();
    let x = table.repack(&rows, &picks, &mut repacked);
    let product = IntProduct { matrix, rows: 0..n_rows, x };
    let mut out = vec![f32::NAN; product.n_outputs()];
    table.int_matmul(&product, &mut IntScratch::default(), &mut out);
    kept(&out, n_rows, picks.len())
}

/// The same in f32.
pub(super) fn float_product(table: &KernelTable, matrix: Matrix<'_>, x: &[Vec<f32>]) -> Vec<f32> {
    let MatrixLayout { kind, n_rows, n_cols } = matrix.layout();
    let mut rows = Activations::new();
    rows.reshape(kind, x.len(), n_cols);
    x.iter().enumerate().for_each(|(i, row)| rows.fill(table, i, row));
    let picks: Vec<usize> = (0..x.len()).collect();
    let product = FloatProduct { matrix, rows: 0..n_rows, x: &rows, picks: &picks };
    let mut out = vec![f32::NAN; product.n_outputs()];
    table.matmul(&product, &mut out);
    kept(&out, n_rows, picks.len())
}

/// Returns the outputs of existing rows.
fn kept(out: &[f32], n_rows: usize, n_picks: usize) -> Vec<f32> {
    super::by_rows(out, n_rows, n_picks)
}

/// Copies every second row to a separate matrix, from row `first` on.
fn taken_apart(stored: &EncodedMatrix, first: usize) -> EncodedMatrix {
    let layout = MatrixLayout { n_rows: stored.layout.n_rows / 2, ..stored.layout };
    let every_second = |part: &[u8]| {
        let row_bytes = (part.len() - 1) / stored.layout.n_rows;
        let rows = (first..stored.layout.n_rows).step_by(2);
        let rows = rows.flat_map(|row| part[1 + row * row_bytes..][..row_bytes].to_vec());
        std::iter::once(0).chain(rows).collect()
    };
    let (codes, scales) = (every_second(&stored.codes), every_second(&stored.scales));
    EncodedMatrix { layout, codes, scales, biases: vec![0] }
}

/// The same as a view.
fn view(stored: &EncodedMatrix, first: usize) -> Matrix<'_> {
    let layout = MatrixLayout { n_rows: stored.layout.n_rows / 2, ..stored.layout };
    let spanned = |part: &'static str| {
        let part = if part == "codes" { &stored.codes } else { &stored.scales };
        let row_bytes = (part.len() - 1) / stored.layout.n_rows;
        &part[1 + first * row_bytes..][..layout.spanned_rows(2) * row_bytes]
    };
    Matrix::of_every(2, layout, spanned("codes"), spanned("scales"))
}

#[test]
fn every_second_row_is_a_matrix() {
    let mut rng = Rng::new(40);
    let kinds = block_kinds().chain(FLOATS.map(MatrixKind::Float));
    for kind in kinds {
        let block_cols = match kind {
            MatrixKind::Block(block) => block.block_cols(),
            _ => 9,
        };
        for (n_rows, n_blocks, n_picks) in
            [(1, 1, 1), (5, 3, 1), (16, 1, 2), (37, 5, 3), (35, 2, 19)]
        {
            let n_cols = n_blocks * block_cols;
            let stored = EncodedMatrix::random(kind, 2 * n_rows, n_cols, &mut rng);
            let x: Vec<_> = (0..n_picks).map(|_| rng.units(n_cols)).collect();
            for first in [0, 1] {
                let (apart, view) = (taken_apart(&stored, first), view(&stored, first));
                let apart = apart.matrix();
                let what = format!("{kind} {n_rows} x {n_cols}, {n_picks} rows from {first}");
                same_matrices(view, apart, &x, &what);
                for table in available() {
                    same_bits(&transposed(table, view), &transposed(table, apart), &what);
                }
            }
        }
    }
}

/// Checks that all tables compute the same products with two matrices, and that their rows are
/// equal.
pub(super) fn same_matrices(a: Matrix<'_>, b: Matrix<'_>, x: &[Vec<f32>], what: &str) {
    for table in available().into_iter().chain(emulated()) {
        let what = format!("{} {what}", table.name());
        same_bits(&int_product(table, a, x), &int_product(table, b, x), &what);
        same_bits(&float_product(table, a, x), &float_product(table, b, x), &what);
    }
    let MatrixLayout { n_rows, n_cols, .. } = a.layout();
    for row_idx in 0..n_rows {
        let [a, b] = [a, b].map(|matrix| {
            let mut out = vec![0.0; n_cols];
            decode_row(&matrix, row_idx, &mut out);
            out
        });
        same_bits(&a, &b, what);
    }
}

fn transposed(table: &KernelTable, matrix: Matrix<'_>) -> Vec<f32> {
    let MatrixLayout { n_rows, n_cols, .. } = matrix.layout();
    let values: Vec<f32> = (0_u8..).map(|i| f32::from(i % 7) - 3.0).take(n_rows).collect();
    let x = StridedRows { values: &values, n_rows: 1, row_len: n_rows, stride: n_rows };
    let mut out = vec![f32::NAN; n_cols];
    let product = TransposedProduct { matrix, rows: 0..n_rows, cols: 0..n_cols, x };
    table.matmul_transposed(&product, &mut out);
    out
}

#[test]
#[should_panic(expected = "stand together")]
fn rows_of_other_kinds_stand_together() {
    let layout = MatrixLayout::new(super::FP8, 2, 32).unwrap();
    let _view = Matrix::of_every(2, layout, &[0; 96], &[0; 4]);
}
