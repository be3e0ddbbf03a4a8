//! Every table against the scalar one, and the scalar one against the stated arithmetic and f64.
//!
//! The oracles here read codes bit by bit and know nothing of lanes in registers.

mod attention;
mod blocks;
mod int8;
mod strided;
mod symmetric;

use half::{bf16, f16};
use moeflux_testing::random::Rng;

use crate::lanes::fused::FusedMultiplyAdd as _;
use crate::lanes::{codes, rounding};
use crate::matrix::blocks::{half_power, power};
use crate::matrix::format::group_cols;
use crate::{
    Activations, Affine, BlockKind, FloatKind, FloatProduct, Fp8, Fp8Spread, KernelTable, Matrix,
    MatrixKind, MatrixLayout, ScaleKind, StridedRows, TransposedProduct, available, best, by_name,
    decode_row,
};

/// Normalised mean squared error of an f32 product against f64: rounding of 4,096 terms in 16 lanes
/// stays far below it, one wrong weight far above.
pub(crate) const NMSE_MAX: f64 = 1e-12;

const FLOATS: [FloatKind; 3] = [FloatKind::F32, FloatKind::F16, FloatKind::Bf16];

/// A matrix whose parts are at odd addresses.
struct EncodedMatrix {
    layout: MatrixLayout,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl EncodedMatrix {
    fn random(kind: MatrixKind, n_rows: usize, n_cols: usize, rng: &mut Rng) -> Self {
        let layout = MatrixLayout::new(kind, n_rows, n_cols).unwrap();
        let mut stored = Self { layout, codes: vec![0], scales: vec![0], biases: vec![0] };
        match kind {
            MatrixKind::Float(float) => {
                let values = rng.units(n_rows * n_cols);
                values.iter().for_each(|&it| push(&mut stored.codes, float, it));
            }
            MatrixKind::Fp8(fp8) => {
                // 0x7f and 0xff are NaN.
                let code = |bits: u64| if bits & 0x7f == 0x7f { 0x7e } else { (bits & 0xff) as u8 };
                stored.codes.extend((0..n_rows * n_cols).map(|_| code(rng.bits())));
                let n_scales = layout.scale_bytes() / fp8.scale.bytes();
                match fp8.scale {
                    ScaleKind::Float(float) => {
                        let scales = rng.units(n_scales);
                        scales.iter().for_each(|&it| push(&mut stored.scales, float, it));
                    }
                    ScaleKind::E8m0 => {
                        let exponents = (0..n_scales).map(|_| 120 + (rng.bits() % 16) as u8);
                        stored.scales.extend(exponents);
                    }
                }
            }
            MatrixKind::Affine(affine) => {
                stored.codes.extend((0..layout.code_bytes()).map(|_| (rng.bits() & 0xff) as u8));
                for part in [&mut stored.scales, &mut stored.biases] {
                    let values = rng.units(layout.scale_bytes() / affine.scale.bytes());
                    values.iter().for_each(|&it| push(part, affine.scale, it));
                }
            }
            MatrixKind::Block(block) => {
                let n_blocks = layout.code_bytes() / block.block_bytes();
                stored.codes.extend(blocks::random_blocks(block, n_blocks, rng));
                stored.scales.extend(blocks::random_scales(block, n_blocks, rng));
            }
        }
        stored
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.layout, &self.codes[1..], &self.scales[1..], &self.biases[1..])
    }

    /// Returns the code or stored value at one place, read the obvious way.
    fn code(&self, row: usize, col: usize) -> f32 {
        let place = row * self.layout.n_cols + col;
        let codes = &self.codes[1..];
        match self.layout.kind {
            MatrixKind::Float(float) => float_at(codes, float, place),
            MatrixKind::Fp8(_) => e4m3(codes[place]),
            MatrixKind::Affine(affine) => {
                let bits = usize::from(affine.bits);
                let row = &codes[row * self.layout.row_bytes()..];
                let bit = |i: usize| u32::from(row[i / 8] >> (i % 8)) & 1;
                (0..bits).map(|i| bit(col * bits + i) << i).sum::<u32>() as f32
            }
            MatrixKind::Block(block) => {
                let parts = (codes, &self.scales[1..]);
                let (code, [scale, bias]) = blocks::parts(block, parts, place);
                code as f32 * scale + bias
            }
        }
    }

    /// Returns scale and bias at one place.
    fn scale_and_bias(&self, row: usize, col: usize) -> (f32, f32) {
        let n_cols = self.layout.n_cols;
        match self.layout.kind {
            MatrixKind::Float(_) | MatrixKind::Block(_) => (1.0, 0.0),
            MatrixKind::Fp8(fp8) => {
                let place = match fp8.spread {
                    Fp8Spread::Block { n_rows, n_cols: shared } => {
                        let shared = usize::from(shared);
                        row / usize::from(n_rows) * n_cols.div_ceil(shared) + col / shared
                    }
                    Fp8Spread::Row => row,
                    Fp8Spread::Matrix => 0,
                };
                let scale = match fp8.scale {
                    ScaleKind::Float(float) => float_at(&self.scales[1..], float, place),
                    ScaleKind::E8m0 => e8m0(self.scales[1 + place]),
                };
                (scale, 0.0)
            }
            MatrixKind::Affine(affine) => {
                let group = usize::from(affine.group);
                let place = row * (n_cols / group) + col / group;
                let at = |part: &[u8]| float_at(&part[1..], affine.scale, place);
                (at(&self.scales), at(&self.biases))
            }
        }
    }

    /// Returns a weight in f64.
    fn weight(&self, row: usize, col: usize) -> f64 {
        let (scale, bias) = self.scale_and_bias(row, col);
        f64::from(self.code(row, col)) * f64::from(scale) + f64::from(bias)
    }

    /// Returns one output by the arithmetic stated in the crate's documentation.
    fn stated_output(&self, row: usize, x: &[f32]) -> f32 {
        let n_cols = self.layout.n_cols;
        let group = group_cols(self.layout.kind);
        let mut acc = 0.0_f32;
        for first in (0..n_cols).step_by(group) {
            let value = |col| if col < n_cols { self.code(row, col) } else { 0.0 };
            let x = |col| if col < n_cols { x[col] } else { 0.0 };
            let (mut dot, mut sum) = ([0.0_f32; 16], [0.0_f32; 16]);
            for col in first..first + group {
                let lane = (col - first) % 16;
                dot[lane] = value(col).fused(x(col), dot[lane]);
                sum[lane] += x(col);
            }
            let (scale, bias) = self.scale_and_bias(row, first);
            match self.layout.kind {
                MatrixKind::Float(_) | MatrixKind::Block(_) => acc += tree(dot),
                MatrixKind::Fp8(_) => acc = scale.fused(tree(dot), acc),
                MatrixKind::Affine(_) => {
                    acc = scale.fused(tree(dot), acc);
                    acc = bias.fused(tree(sum), acc);
                }
            }
        }
        acc
    }
}

fn push(bytes: &mut Vec<u8>, kind: FloatKind, value: f32) {
    match kind {
        FloatKind::F32 => bytes.extend(value.to_le_bytes()),
        FloatKind::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
        FloatKind::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
    }
}

fn float_at(bytes: &[u8], kind: FloatKind, place: usize) -> f32 {
    let bytes = &bytes[place * kind.bytes()..][..kind.bytes()];
    match kind {
        FloatKind::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        FloatKind::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        FloatKind::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    }
}

fn e8m0(exponent: u8) -> f32 {
    if exponent == 255 { f32::NAN } else { 2.0_f32.powi(i32::from(exponent) - 127) }
}

fn e4m3(bits: u8) -> f32 {
    let sign = if bits >= 128 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa / 8.0 * 2.0_f32.powi(-6),
        _ => sign * (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    }
}

pub(crate) fn tree(mut lanes: [f32; 16]) -> f32 {
    for step in [8, 4, 2, 1] {
        for lane in 0..step {
            lanes[lane] += lanes[lane + step];
        }
    }
    lanes[0]
}

pub(crate) fn same_bits(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let same = actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan();
        assert!(same, "{what}: value {i} is {actual:e}, not {expected:e}");
    }
}

pub(crate) fn nmse(actual: &[f32], expected: &[f64]) -> f64 {
    let pairs = || actual.iter().zip(expected);
    let error: f64 = pairs().map(|(&a, &b)| (f64::from(a) - b).powi(2)).sum();
    error / pairs().map(|(_, b)| b * b).sum::<f64>().max(f64::MIN_POSITIVE)
}

pub(crate) fn scalar() -> &'static KernelTable {
    by_name("scalar").unwrap()
}

fn affine_kinds() -> impl Iterator<Item = MatrixKind> {
    [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        [32, 64, 128].into_iter().flat_map(move |group| {
            FLOATS.map(|scale| MatrixKind::Affine(Affine::new(bits, group, scale)))
        })
    })
}

/// Returns the kinds whose biases are implied by their scales.
fn symmetric_kinds() -> impl Iterator<Item = Affine> {
    [4, 8].into_iter().flat_map(|bits| {
        [32, 64, 128]
            .into_iter()
            .flat_map(move |group| FLOATS.map(|scale| Affine::symmetric(bits, group, scale)))
    })
}

const FP8: MatrixKind = MatrixKind::Fp8(Fp8::DEEPSEEK);

/// Returns FP8 with scales of every extent and type.
fn fp8_kinds() -> impl Iterator<Item = MatrixKind> {
    let block = |(n_rows, n_cols)| Fp8Spread::Block { n_rows, n_cols };
    let blocks = [(128, 128), (32, 32), (64, 128), (128, 32), (32, 64)].map(block);
    let spreads = blocks.into_iter().chain([Fp8Spread::Row, Fp8Spread::Matrix]);
    let scales = FLOATS.map(ScaleKind::Float).into_iter().chain([ScaleKind::E8m0]);
    let scales: Vec<ScaleKind> = scales.collect();
    spreads.zip([0, 1, 2, 3, 0, 2, 0, 3].into_iter().cycle()).flat_map(move |(spread, nth)| {
        // Each extent with two of the types.
        [scales[nth], scales[3 - nth]].map(|scale| MatrixKind::Fp8(Fp8 { spread, scale }))
    })
}

fn block_kinds() -> impl Iterator<Item = MatrixKind> {
    BlockKind::ALL.into_iter().map(MatrixKind::Block)
}

fn prepared(table: &KernelTable, kind: MatrixKind, x: &[Vec<f32>]) -> Activations {
    let mut activations = Activations::new();
    // An earlier, larger use leaves values behind that must not be visible.
    activations.reshape(kind, x.len() + 1, 2 * x[0].len());
    activations.fill(table, 0, &vec![7.0; 2 * x[0].len()]);
    activations.reshape(kind, x.len(), x[0].len());
    x.iter().enumerate().for_each(|(i, row)| activations.fill(table, i, row));
    activations
}

/// Reorders `[block of rows][pick][row of the block]` to `[row][pick]`.
fn by_rows(out: &[f32], n_rows: usize, n_picks: usize) -> Vec<f32> {
    let place = |row, pick| row / 16 * 16 * n_picks + pick * 16 + row % 16;
    let rows = (0..n_rows).flat_map(|row| (0..n_picks).map(move |pick| (row, pick)));
    rows.map(|(row, pick)| out[place(row, pick)]).collect()
}

/// Checks one product: all tables, several numbers of picks up to `x.len()`, part of the rows.
fn check_product(stored: &EncodedMatrix, x: &[Vec<f32>]) {
    let matrix = stored.matrix();
    let layout = stored.layout;
    let rows = usize::from(layout.n_rows > 2)..layout.n_rows;
    let picks: Vec<usize> = (0..x.len()).rev().collect();
    let stated: Vec<f32> = rows
        .clone()
        .flat_map(|row| picks.iter().map(move |&pick| (row, pick)))
        .map(|(row, pick)| stored.stated_output(row, &x[pick]))
        .collect();
    for table in available() {
        let activations = prepared(table, layout.kind, x);
        for n_picks in (0..=x.len()).filter(|n| *n < 5 || *n == x.len()) {
            let picks = &picks[..n_picks];
            let product = FloatProduct { matrix, rows: rows.clone(), x: &activations, picks };
            let mut out = vec![f32::NAN; product.n_outputs()];
            table.matmul(&product, &mut out);
            let out = by_rows(&out, rows.len(), n_picks);
            let expected = stated.chunks(x.len()).flat_map(|row| row[..n_picks].to_vec());
            let what = format!("{} {layout:?}, {n_picks} rows", table.name());
            same_bits(&out, &expected.collect::<Vec<_>>(), &what);
        }
    }
    let exact: Vec<f64> = rows
        .flat_map(|row| picks.iter().map(move |&pick| (row, pick)))
        .map(|(row, pick)| {
            let terms = x[pick].iter().enumerate();
            terms.map(|(col, &x)| stored.weight(row, col) * f64::from(x)).sum()
        })
        .collect();
    let error = nmse(&stated, &exact);
    assert!(error <= NMSE_MAX, "{layout:?}: NMSE {error:e}");
}

#[test]
fn affine_products_are_as_stated() {
    let mut rng = Rng::new(1);
    for kind in affine_kinds() {
        for (n_rows, n_cols) in [(1, 128), (6, 640), (9, 384)] {
            let stored = EncodedMatrix::random(kind, n_rows, n_cols, &mut rng);
            let x: Vec<_> = (0..6).map(|_| rng.units(n_cols)).collect();
            check_product(&stored, &x);
        }
    }
}

#[test]
fn one_group_is_enough() {
    let mut rng = Rng::new(2);
    for kind in affine_kinds() {
        let stored = EncodedMatrix::random(kind, 17, group_cols(kind), &mut rng);
        check_product(&stored, &[rng.units(group_cols(kind))]);
    }
}

#[test]
fn ragged_floats_and_fp8_are_as_stated() {
    let mut rng = Rng::new(3);
    let kinds = FLOATS.map(MatrixKind::Float).into_iter().chain(fp8_kinds());
    for kind in kinds {
        for n_cols in [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 511, 513, 600] {
            let n_rows = if n_cols == 129 { 131 } else { 5 };
            let stored = EncodedMatrix::random(kind, n_rows, n_cols, &mut rng);
            let x: Vec<_> = (0..5).map(|_| rng.units(n_cols)).collect();
            check_product(&stored, &x);
        }
    }
}

#[test]
fn products_with_blocks_are_as_stated() {
    let mut rng = Rng::new(10);
    for kind in block_kinds() {
        let MatrixKind::Block(block) = kind else { unreachable!("block kinds only") };
        for n_blocks in [1, 3] {
            let n_cols = n_blocks * block.block_cols();
            let stored = EncodedMatrix::random(kind, 5, n_cols, &mut rng);
            let x: Vec<_> = (0..5).map(|_| rng.units(n_cols)).collect();
            check_product(&stored, &x);
        }
    }
}

#[test]
fn more_than_4096_columns() {
    let mut rng = Rng::new(4);
    let q4 = MatrixKind::Affine(Affine::new(4, 64, FloatKind::Bf16));
    for kind in [q4, FP8, MatrixKind::Float(FloatKind::F16)] {
        let stored = EncodedMatrix::random(kind, 5, 4096 + 64 * 5, &mut rng);
        let x: Vec<_> = (0..5).map(|_| rng.units(4096 + 64 * 5)).collect();
        check_product(&stored, &x);
    }
}

#[test]
fn edge_values_of_activations() {
    let mut rng = Rng::new(5);
    let q4 = MatrixKind::Affine(Affine::new(4, 32, FloatKind::F32));
    let edges = [0.0, -0.0, f32::MIN_POSITIVE, 1e-42, -1e-45, f32::MAX, f32::MIN, f32::INFINITY];
    for kind in [q4, FP8, MatrixKind::Float(FloatKind::F32)] {
        let stored = EncodedMatrix::random(kind, 5, 96, &mut rng);
        let x: Vec<Vec<f32>> = edges.iter().map(|&edge| vec![edge; 96]).collect();
        for table in available() {
            let activations = prepared(table, kind, &x);
            let picks: Vec<usize> = (0..x.len()).collect();
            let product = FloatProduct {
                matrix: stored.matrix(),
                rows: 0..5,
                x: &activations,
                picks: &picks,
            };
            let mut out = vec![0.0; product.n_outputs()];
            table.matmul(&product, &mut out);
            let out = by_rows(&out, 5, x.len());
            let stated = (0..5).flat_map(|row| x.iter().map(move |x| (row, x)));
            let stated: Vec<f32> = stated.map(|(row, x)| stored.stated_output(row, x)).collect();
            same_bits(&out, &stated, &format!("{} {kind}", table.name()));
        }
    }
}

#[test]
fn transposed_products_are_as_stated() {
    let mut rng = Rng::new(6);
    let kinds = affine_kinds().chain(FLOATS.map(MatrixKind::Float)).chain(fp8_kinds());
    for kind in kinds.chain(block_kinds()) {
        let is_ragged = matches!(kind, MatrixKind::Float(_) | MatrixKind::Fp8(_));
        let n_cols = if is_ragged { 700 } else { 768 };
        let stored = EncodedMatrix::random(kind, 11, n_cols, &mut rng);
        let (rows, cols, stride) = (2..11, 128..n_cols - 32, 13);
        let x = rng.units(3 * stride);
        let product = TransposedProduct {
            matrix: stored.matrix(),
            rows: rows.clone(),
            cols: cols.clone(),
            x: StridedRows { values: &x, n_rows: 3, row_len: 9, stride },
        };
        let mut stated = Vec::new();
        for t in 0..3 {
            for col in cols.clone() {
                let acc = rows.clone().zip(&x[t * stride..]).fold(0.0_f32, |acc, (row, &x)| {
                    let (scale, bias) = stored.scale_and_bias(row, col);
                    let weight = match kind {
                        MatrixKind::Affine(_) => stored.code(row, col).fused(scale, bias),
                        _ => stored.code(row, col) * scale,
                    };
                    x.fused(weight, acc)
                });
                stated.push(acc);
            }
        }
        for table in available() {
            let mut out = vec![f32::NAN; 3 * cols.len()];
            table.matmul_transposed(&product, &mut out);
            same_bits(&out, &stated, &format!("{} {kind}", table.name()));
        }
    }
}

#[test]
fn decoded_rows_have_two_roundings() {
    let mut rng = Rng::new(7);
    let kinds = affine_kinds().chain(FLOATS.map(MatrixKind::Float)).chain(fp8_kinds());
    for kind in kinds {
        let n_cols = if matches!(kind, MatrixKind::Affine(_)) { 384 } else { 333 };
        let stored = EncodedMatrix::random(kind, 3, n_cols, &mut rng);
        for row in 0..3 {
            let mut out = vec![f32::NAN; n_cols];
            decode_row(&stored.matrix(), row, &mut out);
            let expected = (0..n_cols).map(|col| {
                let (scale, bias) = stored.scale_and_bias(row, col);
                match kind {
                    MatrixKind::Affine(_) => stored.code(row, col) * scale + bias,
                    _ => stored.code(row, col) * scale,
                }
            });
            same_bits(&out, &expected.collect::<Vec<_>>(), &kind.to_string());
        }
    }
}

#[test]
fn every_small_float_decodes() {
    for bits in 0..=u8::MAX {
        same_bits(&[codes::from_e4m3(bits)], &[e4m3(bits)], "e4m3");
        same_bits(&[power(bits)], &[e8m0(bits)], "e8m0");
        let half = e8m0(bits) / 2.0;
        same_bits(&[half_power(bits)], &[half], "half of e8m0");
    }
    for bits in 0..=u16::MAX {
        same_bits(&[rounding::from_f16(bits)], &[f16::from_bits(bits).to_f32()], "f16");
        same_bits(&[rounding::from_bf16(bits)], &[bf16::from_bits(bits).to_f32()], "bf16");
    }
}

#[test]
fn vector_kernels_are_the_same_everywhere() {
    let mut rng = Rng::new(8);
    let edges = [0.0, -0.0, 1e-42, -1e-45, 1e38, -1e38, f32::MIN_POSITIVE];
    for n in [1, 3, 15, 16, 17, 64, 65, 128, 200, 4100] {
        let mut x = rng.units(n);
        x.iter_mut().step_by(5).zip(edges.iter().cycle()).for_each(|(x, &edge)| *x = edge);
        let rows = rng.units(7 * (n + 3));
        let rows = StridedRows { values: &rows, n_rows: 7, row_len: n, stride: n + 3 };
        let run = |table: &KernelTable| {
            let mut out = vec![table.dot(&x, rows.row(1))];
            let mut sum = x.clone();
            table.axpy(0.3, rows.row(2), &mut sum);
            out.extend(sum);
            let mut scores: Vec<f32> = x.iter().map(|x| x.min(1.0) * 50.0).collect();
            out.push(table.exp_shifted(&mut scores, 50.0));
            out.extend(scores);
            out
        };
        let expected = run(scalar());
        for table in available() {
            same_bits(&run(table), &expected, &format!("{}, {n} values", table.name()));
        }
    }
}

#[test]
fn vector_kernels_are_right() {
    let mut rng = Rng::new(9);
    for n in [5, 16, 100, 256] {
        let (x, y) = (rng.units(n), rng.units(n));
        let exact: f64 = x.iter().zip(&y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        assert!((f64::from(scalar().dot(&x, &y)) - exact).abs() < 1e-5);
        let mut out = x.clone();
        scalar().axpy(0.5, &y, &mut out);
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.5_f32.fused(*y, *x)).collect();
        same_bits(&out, &expected, "sum");
    }
}

#[test]
fn tables_are_found_by_name() {
    let tables = available();
    assert_eq!(tables[0].name(), "scalar");
    assert_eq!(best().name(), tables.last().unwrap().name());
    for table in tables {
        assert_eq!(by_name(table.name()).map(KernelTable::name), Some(table.name()));
    }
    assert!(by_name("quantum").is_none());
}

/// Checks the tables of a known machine, named in `MOEFLUX_TABLES`. An instruction set that is no
/// longer detected would pass every other test.
#[test]
#[expect(clippy::disallowed_methods, reason = "only the caller of the test knows the machine")]
fn a_known_machine_has_its_tables() {
    let names: Vec<_> = available().into_iter().map(KernelTable::name).collect();
    if let Ok(known) = std::env::var("MOEFLUX_TABLES") {
        assert_eq!(names.join(","), known);
    }
}
