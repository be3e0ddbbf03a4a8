//! Cases of products: every kind of weight, many rows, wide rows, kinds side by side.

use moeflux::provider::ops::{Embed, HeadMatMul, MatMul, Op, Orientation, SelectRows};
use moeflux_kernels::{Affine, FloatKind, Fp8, MatrixKind};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::matrices::{all_kinds, fitting_cols};
use crate::random::Rng;

/// Kinds of weights, each once: `all_kinds` has as many.
const N_KINDS: u64 = 66;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "embed",
        what: "every kind of table",
        n_cases: N_KINDS,
        error_source: ErrorSource::Pointwise,
        make: embed,
    },
    CaseMaker {
        op: "select_rows",
        what: "wanted rows, more than fit at once",
        n_cases: 4,
        error_source: ErrorSource::Copy,
        make: select_rows,
    },
    CaseMaker {
        op: "matmul",
        what: "logits of the wanted rows",
        n_cases: 4,
        error_source: ErrorSource::Sum,
        make: logits,
    },
    CaseMaker {
        op: "matmul",
        what: "every kind of weight",
        n_cases: 2 * N_KINDS,
        error_source: ErrorSource::Sum,
        make: matmul,
    },
    CaseMaker {
        op: "matmul",
        what: "dimension above 4096",
        n_cases: 6,
        error_source: ErrorSource::Sum,
        make: wide_matmul,
    },
    CaseMaker {
        op: "matmul",
        what: "many rows",
        n_cases: 6,
        error_source: ErrorSource::Sum,
        make: matmul_of_many_rows,
    },
    CaseMaker {
        op: "matmul",
        what: "many rows of any width, every kind",
        n_cases: N_KINDS,
        error_source: ErrorSource::Sum,
        make: matmul_of_many_rows_of_every_kind,
    },
    CaseMaker {
        op: "matmul",
        what: "8-bit among 4-bit",
        n_cases: 2,
        error_source: ErrorSource::Sum,
        make: eight_bits_among_four,
    },
    CaseMaker {
        op: "matmul",
        what: "inputs of zero and of one large value",
        n_cases: 6,
        error_source: ErrorSource::Sum,
        make: matmul_of_extremes,
    },
    CaseMaker {
        op: "head_matmul",
        what: "rows to outputs and rows from inputs, every kind",
        n_cases: 2 * N_KINDS,
        error_source: ErrorSource::Sum,
        make: |seed| head_matmul(CaseBuilder::new(seed), seed),
    },
    CaseMaker {
        op: "head_matmul",
        what: "many rows",
        n_cases: 12,
        error_source: ErrorSource::Sum,
        make: |seed| {
            let kind_seed = seed % 2 * N_KINDS + seed * 5 % N_KINDS;
            head_matmul(CaseBuilder::with_sessions(Rng::new(seed), &[50, 23]), kind_seed)
        },
    },
];

fn kind_of(seed: u64) -> MatrixKind {
    let kinds = all_kinds();
    let kind_idx = seed % u64::try_from(kinds.len()).expect("some kinds");
    kinds[usize::try_from(kind_idx).expect("some kinds")]
}

fn embed(seed: u64) -> OpCase {
    embedding(seed, kind_of(seed))
}

pub(super) fn embedding(seed: u64, kind: MatrixKind) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let n_tokens = builder.n_tokens();
    let n_cols = builder.rng.between(1, 200);
    let n_cols = fitting_cols(kind, n_cols);
    let n_unused_rows = builder.rng.below(140);
    let table = builder.matrix(kind, n_tokens + n_unused_rows, n_cols);
    let n_heads = builder.rng.pick(&[1, 1, 3]);
    let out = builder.output_heads("out", (n_heads, n_cols));
    builder.finish(vec![Op::Embed(Embed { table, out })])
}

fn select_rows(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[3, 30, 8]);
    let n_cols = builder.rng.between(1, 50);
    let x = builder.heads("x", (1, n_cols));
    let out = builder.tail_output("selected", n_cols);
    builder.finish_tail(vec![Op::SelectRows(SelectRows { x, out })])
}

fn logits(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[3, 30, 8]);
    let kind = Affine::new(4, 64, FloatKind::Bf16);
    let weight = builder.matrix(MatrixKind::Affine(kind), 301, 128);
    let x = builder.input("x", 128);
    let selected = builder.tail_output("selected", 128);
    let out = builder.tail_output("logits", 301);
    builder.finish_tail(vec![
        Op::SelectRows(SelectRows { x, out: selected }),
        Op::MatMul(MatMul { weight, bias: None, x: selected, out }),
    ])
}

pub(super) fn product(
    mut builder: CaseBuilder,
    kind: MatrixKind,
    n_rows: usize,
    n_cols: usize,
) -> OpCase {
    let weight = builder.matrix(kind, n_rows, n_cols);
    let bias = builder.rng.coin().then(|| builder.normal_vector(n_rows, 0.0));
    let x = builder.heads("x", (1, n_cols));
    let out = builder.output("out", n_rows);
    builder.finish(vec![Op::MatMul(MatMul { weight, bias, x, out })])
}

fn matmul(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let kind = kind_of(seed);
    let n_rows = builder.rng.between(1, 150);
    let n_cols = builder.rng.between(1, 400);
    product(builder, kind, n_rows, fitting_cols(kind, n_cols))
}

fn common_kind(rng: &mut Rng) -> MatrixKind {
    let affine = |bits, group| MatrixKind::Affine(Affine::new(bits, group, FloatKind::Bf16));
    rng.pick(&[
        MatrixKind::Float(FloatKind::Bf16),
        MatrixKind::Fp8(Fp8::DEEPSEEK),
        affine(4, 64),
        affine(8, 64),
        affine(3, 128),
        affine(4, 32),
    ])
}

fn wide_matmul(seed: u64) -> OpCase {
    let mut rng = Rng::new(seed);
    let kind = common_kind(&mut rng);
    let (n_rows, n_cols) = if rng.coin() { (33, 7168) } else { (5133, 128) };
    product(CaseBuilder::with_sessions(rng, &[1, 2]), kind, n_rows, n_cols)
}

fn matmul_of_many_rows(seed: u64) -> OpCase {
    let mut rng = Rng::new(seed);
    let kind = common_kind(&mut rng);
    let n_rows = rng.between(40, 80);
    product(CaseBuilder::with_sessions(rng, &[17, 200, 30]), kind, n_rows, 256)
}

fn matmul_of_many_rows_of_every_kind(seed: u64) -> OpCase {
    let mut rng = Rng::new(seed);
    let kind = kind_of(seed);
    let (n_rows, n_cols) = (rng.between(1, 140), rng.between(1, 300));
    let builder = CaseBuilder::with_sessions(rng, &[29, 41]);
    product(builder, kind, n_rows, fitting_cols(kind, n_cols))
}

fn eight_bits_among_four(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let affine = |bits, group| Affine::new(bits, group, FloatKind::Bf16);
    let x = builder.input("x", 256);
    let mut ops = Vec::new();
    for (name, kind) in [("q4", affine(4, 64)), ("q8", affine(8, 64)), ("q4g32", affine(4, 32))] {
        let weight = builder.matrix(MatrixKind::Affine(kind), 48, 256);
        let out = builder.output(name, 48);
        ops.push(Op::MatMul(MatMul { weight, bias: None, x, out }));
    }
    builder.finish(ops)
}

fn matmul_of_extremes(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let kind = common_kind(&mut builder.rng);
    let weight = builder.matrix(kind, 20, 256);
    let x = builder.input_of("x", 256, |rng| match rng.below(40) {
        0 => rng.normal() * 1e6,
        1..20 => 0.0,
        20..30 => -0.0,
        _ => rng.normal() * 1e-30,
    });
    let out = builder.output("out", 20);
    builder.finish(vec![Op::MatMul(MatMul { weight, bias: None, x, out })])
}

fn head_matmul(builder: CaseBuilder, seed: u64) -> OpCase {
    head_product(builder, kind_of(seed), seed < N_KINDS)
}

pub(super) fn head_product(mut builder: CaseBuilder, kind: MatrixKind, gives_rows: bool) -> OpCase {
    let rng = &mut builder.rng;
    let (n_heads, n_rows) = (rng.between(1, 5), rng.between(1, 20));
    let n_cols = fitting_cols(kind, rng.between(1, 150));
    let (first_row, row_stride) = (rng.between(0, 9), n_rows + rng.between(0, 9));
    let weight = builder.matrix(kind, first_row + n_heads * row_stride, n_cols);
    let (orientation, x_dim, out_dim) = if gives_rows {
        (Orientation::RowsToOut, n_cols, n_rows)
    } else {
        (Orientation::RowsFromIn, n_rows, n_cols)
    };
    let x = builder.heads("x", (n_heads, x_dim));
    let out = builder.output_heads("out", (n_heads, out_dim));
    let op = HeadMatMul { weight, first_row, row_stride, n_rows, orientation, x, out };
    builder.finish(vec![Op::HeadMatMul(op)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_kinds_is_that_of_the_cases() {
        assert_eq!(u64::try_from(all_kinds().len()), Ok(N_KINDS));
    }
}
