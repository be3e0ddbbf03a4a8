//! Attention kernels: every table against the stated order, and that against f64.

use half::f16;
use moeflux_testing::random::Rng;

use crate::lanes::fused::FusedMultiplyAdd as _;
use crate::tests::{NMSE_MAX, nmse, same_bits, scalar, tree};
use crate::{
    BLOCK_POSITIONS, CachedRows, CachedValues, ChoiceInputs, ChoiceQueries, CodeShape, KernelTable,
    Matrix, MatrixLayout, ScoreInputs, ScorePart, SoftmaxState, SoftmaxUpdate, StridedRows,
    WeightedRows, available, round_to_f16,
};

/// Positions that are all tiles of keys, and some with a remainder.
const POSITIONS: [usize; 6] = [0, 1, 3, 16, 39, 64];

/// Whole chunks of columns, less than one, and a remainder.
const COLS: [usize; 7] = [1, 15, 16, 40, 64, 131, 256];

/// Squares of 4 and 2, and a remainder of one.
const QUERIES: [usize; 6] = [0, 1, 2, 3, 7, 8];

/// Positions stored in both formats, with a stride.
struct CacheFixture {
    wide: Vec<f32>,
    halves: Vec<u16>,
    n_rows: usize,
    row_len: usize,
    stride: usize,
}

impl CacheFixture {
    /// Returns values that half precision holds exactly.
    fn random(n_rows: usize, row_len: usize, rng: &mut Rng) -> Self {
        let stride = row_len + 5;
        let values = rng.units(n_rows * stride);
        let mut halves = vec![0; values.len()];
        round_to_f16(&values, &mut halves);
        let wide = halves.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect();
        Self { wide, halves, n_rows, row_len, stride }
    }

    fn views(&self) -> [CachedRows<'_>; 2] {
        [CachedValues::F32(&self.wide), CachedValues::F16(&self.halves)].map(|values| CachedRows {
            values,
            n_rows: self.n_rows,
            row_len: self.row_len,
            stride: self.stride,
        })
    }

    fn row(&self, row_idx: usize) -> &[f32] {
        &self.wide[row_idx * self.stride..][..self.row_len]
    }
}

/// Returns a dot product as the crate's documentation states it.
fn stated_dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for col in 0..a.len().next_multiple_of(16) {
        let at = |values: &[f32]| values.get(col).copied().unwrap_or(0.0);
        lanes[col % 16] = at(a).fused(at(b), lanes[col % 16]);
    }
    tree(lanes)
}

fn exact_dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Calls `check` for all tables and both formats.
fn each_table(mut check: impl FnMut(&'static KernelTable, usize, &str)) {
    for table in available() {
        for (kind_idx, kind) in ["f32", "f16"].into_iter().enumerate() {
            check(table, kind_idx, &format!("{} {kind}", table.name()));
        }
    }
}

/// Queries with a stride, and the keys they are multiplied by.
struct ScoreCase {
    queries: Vec<f32>,
    keys: CacheFixture,
}

impl ScoreCase {
    fn query(&self, query_idx: usize) -> &[f32] {
        let n_cols = self.keys.row_len;
        &self.queries[query_idx * (n_cols + 3)..][..n_cols]
    }

    fn check(&self, n_queries: usize) {
        let CachedRows { n_rows: n_positions, row_len: n_cols, .. } = self.keys.views()[0];
        let places = || (0..n_queries).flat_map(|r| (0..n_positions).map(move |it| (r, it)));
        let mut stated = vec![7.0; n_queries * BLOCK_POSITIONS];
        for (r, position) in places() {
            stated[r * BLOCK_POSITIONS + position] =
                stated_dot(self.query(r), self.keys.row(position));
        }
        each_table(|table, kind_idx, what| {
            let keys = self.keys.views()[kind_idx];
            let values = &self.queries;
            let queries =
                StridedRows { values, n_rows: n_queries, row_len: n_cols, stride: n_cols + 3 };
            let parts = [ScorePart { queries, keys }];
            let mut out = vec![7.0; stated.len()];
            table.scores(&ScoreInputs { parts: &parts, next: Some(keys) }, &mut out);
            same_bits(&out, &stated, &format!("{what} {n_queries} {n_positions} {n_cols}"));
        });
        let seen = places().map(|(r, position)| stated[r * BLOCK_POSITIONS + position]);
        let exact = places().map(|(r, it)| exact_dot(self.query(r), self.keys.row(it)));
        let error = nmse(&seen.collect::<Vec<_>>(), &exact.collect::<Vec<_>>());
        assert!(error <= NMSE_MAX, "NMSE {error:e}");
    }
}

#[test]
fn scores_are_as_stated() {
    let mut rng = Rng::new(20);
    for n_cols in COLS {
        for n_positions in POSITIONS {
            let keys = CacheFixture::random(n_positions, n_cols, &mut rng);
            let case = ScoreCase { queries: rng.units(8 * (n_cols + 3)), keys };
            QUERIES.into_iter().for_each(|n_queries| case.check(n_queries));
        }
    }
}

#[test]
fn scores_of_a_choice_are_as_stated() {
    let mut rng = Rng::new(25);
    for (n_heads, n_cols) in [(1, 16), (4, 15), (16, 64), (19, 40), (32, 128), (40, 1)] {
        for n_keys in POSITIONS {
            let (queries, weights) = (rng.units(n_heads * (n_cols + 3)), rng.units(n_heads));
            let mut keys = CacheFixture::random(n_keys, n_cols, &mut rng);
            check_choice((&queries, Some(&weights)), &keys);
            check_choice((&queries, None), &keys);
            if n_keys > 0 {
                // Every product with the last key is broken.
                let at = (n_keys - 1) * keys.stride;
                (keys.wide[at], keys.halves[at]) = (f32::NAN, f16::NAN.to_bits());
                check_choice((&queries, Some(&weights)), &keys);
            }
        }
    }
}

fn check_choice((queries, weights): (&[f32], Option<&[f32]>), keys: &CacheFixture) {
    let (n_cols, stride) = (keys.row_len, keys.row_len + 3);
    let n_heads = queries.len() / stride;
    let score = |key: usize| {
        let mut lanes = [0.0_f32; 16];
        for (head, query) in queries.chunks_exact(stride).enumerate() {
            let pairs = query.iter().zip(keys.row(key));
            let product = pairs.fold(0.0_f32, |sum, (query, key)| query.fused(*key, sum));
            let positive = if product < 0.0 { 0.0 } else { product };
            let weight = weights.map_or(1.0, |weights| weights[head]);
            lanes[head % 16] = weight.fused(positive, lanes[head % 16]);
        }
        tree(lanes)
    };
    let stated: Vec<f32> = (0..keys.n_rows).map(score).collect();
    let mut packed = vec![7.0; ChoiceQueries::n_values(n_heads, n_cols)];
    let queries = StridedRows { values: queries, n_rows: n_heads, row_len: n_cols, stride };
    ChoiceQueries::pack(&queries, weights, &mut packed);
    each_table(|table, kind_idx, what| {
        let queries = ChoiceQueries::new(&packed, n_cols);
        let mut out = vec![7.0; keys.n_rows];
        let inputs = ChoiceInputs { queries, keys: keys.views()[kind_idx] };
        table.choice_scores(&inputs, &mut out);
        let what = format!("{what} {n_heads} {n_cols} {}", keys.n_rows);
        let n_whole = stated.iter().position(|score| score.is_nan()).unwrap_or(stated.len());
        same_bits(&out[..n_whole], &stated[..n_whole], &what);
        assert!(out[n_whole..].iter().all(|score| score.is_nan()), "{what}");
    });
}

#[test]
fn parts_of_scores_are_added_in_their_order() {
    let mut rng = Rng::new(21);
    let (latents, ropes) =
        (CacheFixture::random(37, 80, &mut rng), CacheFixture::random(37, 24, &mut rng));
    let (wide, narrow) = (rng.units(5 * 80), rng.units(5 * 24));
    each_table(|table, kind_idx, what| {
        let queries = |values, row_len| StridedRows { values, n_rows: 5, row_len, stride: row_len };
        let parts = [
            ScorePart { queries: queries(&wide, 80), keys: latents.views()[kind_idx] },
            ScorePart { queries: queries(&narrow, 24), keys: ropes.views()[kind_idx] },
        ];
        let mut out = vec![0.0; 5 * BLOCK_POSITIONS];
        table.scores(&ScoreInputs { parts: &parts, next: None }, &mut out);
        for (r, row) in out.chunks(BLOCK_POSITIONS).enumerate() {
            for (position, &score) in row[..37].iter().enumerate() {
                let latent = stated_dot(&wide[r * 80..][..80], latents.row(position));
                let rope = stated_dot(&narrow[r * 24..][..24], ropes.row(position));
                same_bits(&[score], &[latent + rope], what);
            }
        }
    });
}

/// Values with weights, and their initial sums.
struct WeightedCase {
    values: CacheFixture,
    weights: Vec<f32>,
    factors: Vec<f32>,
    before: Vec<f32>,
}

impl WeightedCase {
    /// Returns one output as stated, and in f64.
    fn output(&self, query_idx: usize, col: usize) -> (f32, f64) {
        let first = self.before[query_idx * self.values.row_len + col];
        let factor = self.factors[query_idx];
        let weights = &self.weights[query_idx * BLOCK_POSITIONS..][..self.values.n_rows];
        let start = (first * factor, f64::from(first) * f64::from(factor));
        weights.iter().enumerate().fold(start, |(sum, wide), (position, &weight)| {
            let value = self.values.row(position)[col];
            (weight.fused(value, sum), wide + f64::from(weight) * f64::from(value))
        })
    }

    fn check(&self, n_queries: usize) {
        let n_cols = self.values.row_len;
        let outputs = (0..n_queries).flat_map(|r| (0..n_cols).map(move |col| (r, col)));
        let (stated, exact): (Vec<f32>, Vec<f64>) =
            outputs.map(|(r, col)| self.output(r, col)).unzip();
        each_table(|table, kind_idx, what| {
            let rows = self.values.views()[kind_idx];
            let sum = WeightedRows {
                weights: &self.weights[..n_queries * BLOCK_POSITIONS],
                factors: &self.factors[..n_queries],
                rows,
                next: Some(rows),
            };
            let mut out = self.before[..n_queries * n_cols].to_vec();
            table.add_weighted(&sum, &mut out);
            same_bits(&out, &stated, &format!("{what} {n_queries} {} {n_cols}", rows.n_rows));
        });
        let error = nmse(&stated, &exact);
        assert!(error <= NMSE_MAX, "NMSE {error:e}");
    }
}

#[test]
fn weighted_sums_are_as_stated() {
    let mut rng = Rng::new(22);
    for n_cols in COLS {
        for n_positions in POSITIONS {
            let case = WeightedCase {
                values: CacheFixture::random(n_positions, n_cols, &mut rng),
                weights: rng.units(8 * BLOCK_POSITIONS),
                factors: rng.units(8),
                before: rng.units(8 * n_cols),
            };
            QUERIES.into_iter().for_each(|n_queries| case.check(n_queries));
        }
    }
}

/// Positions stored as codes, preceded by others.
struct CachedCodes {
    parts: [Vec<u8>; 3],
    layout: MatrixLayout,
    n_values: usize,
}

/// Number of preceding positions.
const N_BEFORE: usize = 3;

impl CachedCodes {
    fn random(n_rows: usize, n_values: usize, rng: &mut Rng) -> Self {
        let shape = CodeShape::of(n_values);
        let n_rows = n_rows + N_BEFORE;
        let layout = MatrixLayout::new(shape.kind(), n_rows, shape.n_cols).unwrap();
        let mut parts = shape.part_bytes().map(|n_bytes| vec![0; n_rows * n_bytes]);
        let [codes, scales, biases] = &mut parts;
        let [code_bytes, factor_bytes, _] = shape.part_bytes();
        let factors = scales.chunks_mut(factor_bytes).zip(biases.chunks_mut(factor_bytes));
        for (codes, (scales, biases)) in codes.chunks_mut(code_bytes).zip(factors) {
            shape.round(&rng.units(n_values), codes, [scales, biases]);
        }
        Self { parts, layout, n_values }
    }

    fn matrix(&self) -> Matrix<'_> {
        let [codes, scales, biases] = &self.parts;
        Matrix::new(self.layout, codes, scales, biases)
    }

    fn rows(&self) -> CachedRows<'_> {
        CachedRows {
            values: CachedValues::Codes { matrix: self.matrix(), first_row: N_BEFORE },
            n_rows: self.layout.n_rows - N_BEFORE,
            row_len: self.n_values,
            stride: self.layout.n_cols,
        }
    }

    /// Returns a position's code, scale and bias of one column.
    fn value(&self, position: usize, col: usize) -> (f32, f32, f32) {
        let (row_idx, n_cols) = (position + N_BEFORE, self.layout.n_cols);
        let shape = CodeShape::of(self.n_values);
        let at = 2 * ((row_idx * n_cols + col) / usize::from(shape.group));
        let wide = |part: &[u8]| f32::from_bits(u32::from_le_bytes([0, 0, part[at], part[at + 1]]));
        let [codes, scales, biases] = &self.parts;
        (f32::from(codes[row_idx * n_cols + col]), wide(scales), wide(biases))
    }

    /// Returns one output as stated, and in f64.
    fn output(&self, weights: &[f32], (factor, before): (f32, f32), col: usize) -> (f32, f64) {
        let (mut sum, mut wide) = (before * factor, f64::from(before) * f64::from(factor));
        let mut biases = Vec::new();
        for (position, &weight) in weights.iter().enumerate() {
            let (code, scale, bias) = self.value(position, col);
            sum = (weight * scale).fused(code, sum);
            biases.push(bias);
            let value = f64::from(code) * f64::from(scale) + f64::from(bias);
            wide += f64::from(weight) * value;
        }
        (sum + stated_dot(weights, &biases), wide)
    }

    fn check(&self, n_queries: usize, rng: &mut Rng) {
        let (n_positions, n_cols) = (self.rows().n_rows, self.n_values);
        let weights = rng.units(n_queries * BLOCK_POSITIONS);
        let (factors, before) = (rng.units(n_queries), rng.units(n_queries * n_cols));
        let outputs = (0..n_queries).flat_map(|r| (0..n_cols).map(move |col| (r, col)));
        let (stated, exact): (Vec<f32>, Vec<f64>) = outputs
            .map(|(r, col)| {
                let weights = &weights[r * BLOCK_POSITIONS..][..n_positions];
                self.output(weights, (factors[r], before[r * n_cols + col]), col)
            })
            .unzip();
        for table in available() {
            let (rows, next) = (self.rows(), Some(self.rows()));
            let sum = WeightedRows { weights: &weights, factors: &factors, rows, next };
            let mut out = before.clone();
            table.add_weighted(&sum, &mut out);
            let what = format!("{} {n_queries} {n_positions} {n_cols}", table.name());
            same_bits(&out, &stated, &what);
        }
        let error = nmse(&stated, &exact);
        assert!(error <= NMSE_MAX, "NMSE {error:e}");
    }
}

#[test]
fn weighted_sums_of_codes_are_as_stated() {
    let mut rng = Rng::new(25);
    for n_cols in COLS {
        for n_positions in POSITIONS {
            let codes = CachedCodes::random(n_positions, n_cols, &mut rng);
            for n_queries in QUERIES.into_iter().chain([19]) {
                codes.check(n_queries, &mut rng);
            }
        }
    }
}

/// Takes the scores into the softmax of three queries: an empty one, one whose maximum stays, and
/// one whose maximum grows.
fn updated(
    table: &KernelTable,
    n_positions: usize,
    scores: &[f32],
) -> (Vec<f32>, Vec<SoftmaxState>) {
    let mut scores = scores.to_vec();
    let mut states = vec![
        SoftmaxState::EMPTY,
        SoftmaxState { max: 1e3, sum: 2.0 },
        SoftmaxState { max: -3.0, sum: 5.0 },
    ];
    let mut factors = vec![0.0; 3];
    table.update_softmax(&mut SoftmaxUpdate {
        scores: &mut scores,
        n_positions,
        scale: 0.5,
        states: &mut states,
        factors: &mut factors,
    });
    scores.extend(factors);
    (scores, states)
}

#[test]
fn admitted_scores_are_weights() {
    let mut rng = Rng::new(23);
    for n_positions in [1, 15, 16, 17, 64] {
        let scores: Vec<f32> =
            rng.units(3 * BLOCK_POSITIONS).iter().map(|score| score * 20.0).collect();
        let (weights, states) = updated(scalar(), n_positions, &scores);
        let before = [(f64::NEG_INFINITY, 0.0), (1e3, 2.0), (-3.0, 5.0)];
        for (r, (max, sum)) in before.into_iter().enumerate() {
            let row = |values: &[f32]| -> Vec<f64> {
                let row = &values[r * BLOCK_POSITIONS..][..n_positions];
                row.iter().map(|&it| f64::from(it)).collect()
            };
            let exact: Vec<f64> = row(&scores).iter().map(|score| score * 0.5).collect();
            let new_max = exact.iter().copied().fold(max, f64::max);
            assert!((f64::from(states[r].max) - new_max).abs() < 1e-12);
            let factor = (max - new_max).exp();
            let mut new_sum = sum * factor;
            for (weight, score) in row(&weights).iter().zip(&exact) {
                // The difference of two scores is rounded: 6e-8 times at most 40.
                let exact = (score - new_max).exp();
                assert!((weight - exact).abs() <= 3e-6 * exact, "{weight} {exact}");
                new_sum += exact;
            }
            assert!((f64::from(states[r].sum) - new_sum).abs() <= 3e-6 * new_sum);
            let actual = f64::from(weights[3 * BLOCK_POSITIONS + r]);
            assert!((actual - factor).abs() <= 3e-6 * factor, "{actual} {factor}");
        }
        let untouched = |values: &[f32]| values[n_positions..BLOCK_POSITIONS].to_vec();
        assert_eq!(untouched(&weights), untouched(&scores));
    }
}

#[test]
fn admission_is_the_same_everywhere() {
    let mut rng = Rng::new(24);
    let edges = [0.0, -0.0, f32::NAN, 1e38, -1e38, 1e-42, f32::NEG_INFINITY, f32::INFINITY];
    for n_positions in [0, 1, 15, 16, 17, 33, 64] {
        for n_edges in 0..=edges.len() {
            let mut scores = rng.units(3 * BLOCK_POSITIONS);
            for (i, &edge) in edges[..n_edges].iter().enumerate() {
                scores[i * 23] = edge;
            }
            let expected = updated(scalar(), n_positions, &scores);
            let flat = |states: &[SoftmaxState]| -> Vec<f32> {
                states.iter().flat_map(|it| [it.max, it.sum]).collect()
            };
            for table in available() {
                let actual = updated(table, n_positions, &scores);
                let what = format!("{} {n_positions} {n_edges}", table.name());
                same_bits(&actual.0, &expected.0, &what);
                same_bits(&flat(&actual.1), &flat(&expected.1), &what);
            }
        }
    }
}

#[test]
fn every_half_is_widened_exactly() {
    for table in available() {
        for first in (0..=u16::MAX).step_by(BLOCK_POSITIONS) {
            let halves: Vec<u16> = (0..64).map(|i| first + i).collect();
            let mut out = vec![0.0; 64];
            let rows = CachedRows {
                values: CachedValues::F16(&halves),
                n_rows: 1,
                row_len: 64,
                stride: 64,
            };
            let sum = WeightedRows {
                weights: &[1.0; BLOCK_POSITIONS],
                factors: &[1.0],
                rows,
                next: None,
            };
            table.add_weighted(&sum, &mut out);
            let exact = halves.iter().map(|&bits| f16::from_bits(bits).to_f32() + 0.0);
            same_bits(&out, &exact.collect::<Vec<_>>(), table.name());
        }
    }
}
