//! Int8 products against the arithmetic stated in the module's documentation, and against f64.

use moeflux_testing::random::Rng;

use super::{EncodedMatrix, affine_kinds, blocks, nmse, same_bits};
use crate::cpu::Fetching;
use crate::lanes::fused::FusedMultiplyAdd as _;
use crate::{
    Affine, BlockKind, FloatKind, IntProduct, IntRows, IntScratch, KernelTable, MatrixKind,
    ROWS_PER_BLOCK, RepackedRows, available, emulated,
};

/// A step of a 127th of the largest value of a group means an error of at most half a step: for
/// uniform values 1 / (127^2 * 4) of their mean square.
const ROUNDING_NMSE_MAX: f64 = 4e-5;

fn group_of(kind: MatrixKind) -> usize {
    let MatrixKind::Affine(affine) = kind else { unreachable!("affine kinds only") };
    usize::from(affine.group)
}

/// Converts an integer of at most 8 bits and a sign.
#[expect(clippy::cast_possible_truncation, reason = "far below 2^31")]
fn integer(value: f32) -> i32 {
    value as i32
}

/// Returns values, step and `step * sum` of a group, as stated.
fn stated_group(x: &[f32]) -> (Vec<i32>, f32, f32) {
    let magnitude = x.iter().fold(0.0_f32, |max, it| if it.abs() > max { it.abs() } else { max });
    if x.iter().any(|it| !it.is_finite()) {
        return (vec![0; x.len()], f32::NAN, f32::NAN);
    }
    if magnitude < 2.0_f32.powi(-100) {
        return (vec![0; x.len()], 0.0, 0.0);
    }
    let inverse = 127.0 / magnitude;
    let rounded = x.iter().map(|x| integer((x * inverse).round_ties_even()));
    let values: Vec<i32> = rounded.collect();
    let step = magnitude / 127.0;
    let sum = step * values.iter().sum::<i32>() as f32;
    (values, step, sum)
}

/// Computes blocks that carry their own scales: two groups of 16 columns share a step.
fn stated_block_output(stored: &EncodedMatrix, kind: BlockKind, row: usize, x: &[f32]) -> f32 {
    let mut acc = 0.0_f32;
    for (i, x) in x.chunks(32).enumerate() {
        let (values, step, _) = stated_group(x);
        for (g, values) in values.chunks(kind.group_cols()).enumerate() {
            let first = row * stored.layout.n_cols + i * 32 + g * kind.group_cols();
            let bytes = (&stored.codes[1..], &stored.scales[1..]);
            let part = |k| blocks::parts(kind, bytes, first + k);
            let codes = values.iter().enumerate().map(|(k, value)| part(k).0 * value).sum::<i32>();
            let (_, [scale, bias]) = part(0);
            acc = (scale * step).fused(codes as f32, acc);
            if kind.has_biases() {
                acc = bias.fused(step * values.iter().sum::<i32>() as f32, acc);
            }
        }
    }
    acc
}

fn stated_output(stored: &EncodedMatrix, row: usize, x: &[f32]) -> f32 {
    if let MatrixKind::Block(kind) = stored.layout.kind {
        return stated_block_output(stored, kind, row, x);
    }
    let group = group_of(stored.layout.kind);
    let mut acc = 0.0_f32;
    for (g, x) in x.chunks(group).enumerate() {
        let (values, step, sum) = stated_group(x);
        let codes = values.iter().enumerate().map(|(i, value)| {
            let code = integer(stored.code(row, g * group + i));
            code * value
        });
        let codes = codes.sum::<i32>() as f32;
        let (scale, bias) = stored.scale_and_bias(row, g * group);
        acc = (scale * step).fused(codes, acc);
        acc = bias.fused(sum, acc);
    }
    acc
}

fn prepared(table: &KernelTable, kind: MatrixKind, x: &[Vec<f32>]) -> IntRows {
    let mut rows = IntRows::new();
    // An earlier, larger use leaves values behind that must not be visible.
    rows.reshape(kind, x.len() + 1, 2 * x[0].len());
    rows.fill(table, 0, &vec![7.0; 2 * x[0].len()]);
    rows.reshape(kind, x.len(), x[0].len());
    x.iter().enumerate().for_each(|(i, row)| rows.fill(table, i, row));
    rows
}

/// Checks one product on all tables, for several numbers of picks, over part of the rows.
fn check_product(stored: &EncodedMatrix, x: &[Vec<f32>]) -> Vec<f32> {
    let (matrix, layout) = (stored.matrix(), stored.layout);
    let rows = usize::from(layout.n_rows > 2)..layout.n_rows;
    let picks: Vec<usize> = (0..x.len()).rev().collect();
    let stated: Vec<Vec<f32>> =
        x.iter().map(|x| rows.clone().map(|row| stated_output(stored, row, x)).collect()).collect();
    let (mut scratch, mut repacked) = (IntScratch::default(), RepackedRows::default());
    for table in available().into_iter().chain(emulated()) {
        let activations = prepared(table, layout.kind, x);
        for n_picks in (0..=x.len()).filter(|n| *n < 4 || *n == x.len()) {
            let picks = &picks[..n_picks];
            table.repack(&activations, picks, &mut repacked);
            // Products may reuse the repacked rows any number of times.
            let x = repacked.inputs(&activations, picks);
            let product = IntProduct { matrix, rows: rows.clone(), x };
            let mut out = vec![f32::NAN; product.n_outputs()];
            scratch.fetching = Fetching::Requests;
            table.int_matmul(&product, &mut scratch, &mut out);
            let what = format!("{} {layout:?}, {n_picks} rows", table.name());
            for fetching in [Fetching::NearRequests, Fetching::Streams] {
                let mut same = vec![f32::NAN; product.n_outputs()];
                scratch.fetching = fetching;
                table.int_matmul(&product, &mut scratch, &mut same);
                same_bits(&same, &out, &what);
            }
            for (i, &pick) in picks.iter().enumerate() {
                let blocks = out.chunks(ROWS_PER_BLOCK * n_picks);
                let actual: Vec<f32> = blocks
                    .flat_map(|block| block[i * ROWS_PER_BLOCK..][..ROWS_PER_BLOCK].to_vec())
                    .take(rows.len())
                    .collect();
                same_bits(&actual, &stated[pick], &what);
            }
        }
    }
    stated.concat()
}

#[test]
fn products_are_as_stated() {
    let mut rng = Rng::new(21);
    for kind in affine_kinds() {
        let group = group_of(kind);
        let sizes = [(1, 1, 3), (6, 5, 4), (16, 9, 3), (37, 1, 35), (50, 1408 / group, 3)];
        for (n_rows, n_groups, n_picks) in sizes.into_iter().chain([(17, 2176 / group, 18)]) {
            let n_cols = n_groups * group;
            let stored = EncodedMatrix::random(kind, n_rows, n_cols, &mut rng);
            let x: Vec<_> = (0..n_picks).map(|_| rng.units(n_cols)).collect();
            check_product(&stored, &x);
        }
    }
}

#[test]
fn products_with_blocks_are_as_stated() {
    let mut rng = Rng::new(25);
    for kind in BlockKind::ALL {
        let small = [(1, 1, 3), (6, 5, 4), (16, 3, 3), (37, 2, 35), (50, 17, 3), (17, 70, 18)];
        let large = [(1, 1, 3), (6, 2, 4), (37, 1, 35), (50, 3, 18)];
        let sizes = if kind.block_cols() == 32 { &small[..] } else { &large };
        for &(n_rows, n_blocks, n_picks) in sizes {
            let n_cols = n_blocks * kind.block_cols();
            let stored = EncodedMatrix::random(MatrixKind::Block(kind), n_rows, n_cols, &mut rng);
            let x: Vec<_> = (0..n_picks).map(|_| rng.units(n_cols)).collect();
            check_product(&stored, &x);
        }
    }
}

#[test]
fn extreme_blocks() {
    for kind in BlockKind::ALL {
        let n_cols = 2 * kind.block_cols();
        let mut stored =
            EncodedMatrix::random(MatrixKind::Block(kind), 16, n_cols, &mut Rng::new(26));
        let mut x = vec![vec![1.0; n_cols], vec![-1.0; n_cols], vec![0.0; n_cols]];
        x.push((0..n_cols).map(|col| if col % 40 == 3 { f32::NAN } else { 0.5 }).collect());
        // Scales of the largest and of subnormal numbers, and codes with all halves equal.
        for byte in [0x00, 0x01, 0x7b, 0x80, 0x03, 0xf7] {
            stored.codes[1..].fill(byte);
            stored.scales[1..].fill(byte);
            check_product(&stored, &x);
        }
        // Infinities and NaN.
        for byte in [0x7c, 0xff] {
            stored.codes[1..].fill(byte);
            stored.scales[1..].fill(byte);
            check_product(&stored, &x);
        }
    }
}

#[test]
fn rounding_errors_match_the_size_of_a_step() {
    let mut rng = Rng::new(22);
    for bits in [4, 8] {
        let kind = MatrixKind::Affine(Affine::new(bits, 64, FloatKind::F32));
        let stored = EncodedMatrix::random(kind, 48, 2048, &mut rng);
        let x = vec![rng.units(2048)];
        let actual = check_product(&stored, &x);
        let exact: Vec<f64> = (1..48)
            .map(|row| {
                let terms = x[0].iter().enumerate();
                terms.map(|(col, &x)| stored.weight(row, col) * f64::from(x)).sum()
            })
            .collect();
        let error = nmse(&actual, &exact);
        assert!((1e-7..ROUNDING_NMSE_MAX).contains(&error), "{bits} bits: NMSE {error:e}");
    }
}

#[test]
fn rounding_costs_the_same_with_blocks() {
    let mut rng = Rng::new(27);
    for kind in BlockKind::ALL {
        let stored = EncodedMatrix::random(MatrixKind::Block(kind), 48, 2048, &mut rng);
        let x = vec![rng.units(2048)];
        let actual = check_product(&stored, &x);
        let exact: Vec<f64> = (1..48)
            .map(|row| {
                let terms = x[0].iter().enumerate();
                terms.map(|(col, &x)| stored.weight(row, col) * f64::from(x)).sum()
            })
            .collect();
        let error = nmse(&actual, &exact);
        assert!((1e-7..ROUNDING_NMSE_MAX).contains(&error), "{kind}: NMSE {error:e}");
    }
}

#[test]
fn largest_sums_stay_exact() {
    for bits in [4, 8] {
        let kind = MatrixKind::Affine(Affine::new(bits, 128, FloatKind::F32));
        let mut stored = EncodedMatrix::random(kind, 16, 256, &mut Rng::new(23));
        stored.codes.fill(0xff);
        check_product(&stored, &[vec![1.0; 256], vec![-1.0; 256]]);
    }
}

#[test]
fn edge_values_of_activations() {
    let kind = MatrixKind::Affine(Affine::new(4, 32, FloatKind::F16));
    let mut rng = Rng::new(24);
    let stored = EncodedMatrix::random(kind, 16, 96, &mut rng);
    let mut edges = vec![
        vec![0.0; 96],
        vec![-0.0; 96],
        vec![1e-42; 96],
        vec![f32::MAX; 96],
        vec![f32::INFINITY; 96],
        vec![f32::NAN; 96],
    ];
    for odd in [f32::NEG_INFINITY, f32::NAN, 1e30, 2.0_f32.powi(-100), 2.0_f32.powi(-101)] {
        let mut x = rng.units(96);
        x[40] = odd;
        edges.push(x);
    }
    // Halves between two integers round to the even one.
    edges.push((0..96).map(|i| if i % 32 == 0 { 127.0 } else { i as f32 + 0.5 }).collect());
    check_product(&stored, &edges);
}
