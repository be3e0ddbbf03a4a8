//! The choice of the positions that a row attends to.
//!
//! Rows are scored in groups, so that the scores of a long context take a bounded amount of memory;
//! within a group, spans of positions of all rows are divided among threads, and then the rows.
//! **Invariant:** a score depends only on its row and its position, and the order of positions with
//! scores is total, so the division changes no choice.

use moeflux_kernels::{BLOCK_POSITIONS, KernelTable, ScoreInputs, ScorePart, StridedRows};

use crate::backend::cpu::attention::segment_of;
use crate::backend::cpu::split::SplitItems;
use crate::backend::cpu::{Inputs, PlanExecutor, grown};
use crate::backend::host::HostStates;
use crate::ops::{Batch, Heads, SelectPositions};

/// Positions that a thread scores before it takes others.
const SPAN: usize = 512;

/// Maximum scores kept at a time: 16 MiB. One row may have more.
const N_SCORES_MAX: usize = 1 << 22;

/// Products that cost as much as one value read from memory.
const PRODUCTS_PER_VALUE: usize = 8;

/// Scratch of one thread; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct SelectionScratch {
    /// `[heads, BLOCK_POSITIONS]`.
    products: Vec<f32>,
    /// Scores and positions of one row: see [`rank_of`].
    ranks: Vec<u64>,
}

impl PlanExecutor {
    pub(super) fn select_positions(&mut self, op: &SelectPositions, batch: &Batch<'_>) {
        let list = &op.chosen.list;
        let reads = [op.q, op.k, op.weights];
        let mut out = self.take_output(list.buffer, &reads, batch.rows.len());
        let (written, snapshot) = (list.buffer, &self.scratch.snapshot);
        let inputs = Inputs { buffers: &self.buffers, written, snapshot };
        append(&mut self.states, op, batch, &inputs);
        let chooses = |row_idx: &usize| !op.chosen.is_all(batch.rows[*row_idx].position.0);
        let rows: Vec<usize> = (0..batch.rows.len()).filter(chooses).collect();
        let n_seen = |row_idx: usize| batch.rows[row_idx].position.0 + 1;
        let n_seen_max = rows.iter().map(|row_idx| n_seen(*row_idx)).max().unwrap_or(0);
        let stride = n_seen_max.next_multiple_of(SPAN).max(SPAN);
        let n_cols = out.n_cols;
        for rows in rows.chunks((N_SCORES_MAX / stride).max(1)) {
            let scores = grown(&mut self.scratch.scores, rows.len() * stride, 0.0);
            let task = ScoreTask { op, batch, inputs, states: &self.states };
            let common = &self.common;
            let cost = SPAN * (op.k.head_dim + op.q.n_heads * op.k.head_dim / PRODUCTS_PER_VALUE);
            let n_items = rows.len() * stride / SPAN;
            let items = SplitItems { n_items, align: 1, cost, offset: |item: usize| item * SPAN };
            common.split.ranges(scores, &items, &|range, scores| {
                let mut worker = common.worker();
                let products = &mut worker.selection.products;
                for (item, scores) in range.zip(scores.chunks_exact_mut(SPAN)) {
                    let place = (rows[item * SPAN / stride], item * SPAN % stride);
                    task.span(common.table, place, (&mut *products, scores));
                }
            });
            let scores = &*scores;
            let offset = |item: usize| match rows.get(item) {
                Some(row_idx) => row_idx * n_cols,
                None => rows.last().map_or(0, |row_idx| (row_idx + 1) * n_cols),
            };
            let items = SplitItems { n_items: rows.len(), align: 1, cost: 4 * n_seen_max, offset };
            common.split.ranges(&mut out.values, &items, &|range, values| {
                let mut worker = common.worker();
                let ranks = &mut worker.selection.ranks;
                let base = rows[range.start] * n_cols;
                for item in range {
                    let scores = &scores[item * stride..][..n_seen(rows[item])];
                    let row = &mut values[rows[item] * n_cols - base..][..n_cols];
                    choose(scores, ranks, &mut row[list.cols(0)]);
                }
            });
        }
        self.buffers.put(list.buffer, out);
    }
}

/// Copies the rows' index keys to their sessions' caches.
fn append(states: &mut HostStates, op: &SelectPositions, batch: &Batch<'_>, inputs: &Inputs<'_>) {
    for segment in batch.segments {
        let table = states.layer_mut(segment.state, op.layer).index_keys_mut();
        assert_eq!(table.shape(), (1, op.k.head_dim), "index keys of the cache");
        for row_idx in segment.rows.clone() {
            table.put(0, batch.rows[row_idx].position.0, inputs.head(&op.k, row_idx, 0));
        }
    }
}

/// The inputs of all scores of a step.
struct ScoreTask<'a> {
    op: &'a SelectPositions,
    batch: &'a Batch<'a>,
    inputs: Inputs<'a>,
    states: &'a HostStates,
}

impl ScoreTask<'_> {
    /// Computes the scores of a row for the positions from `first` on that it sees.
    fn span(
        &self,
        table: &'static KernelTable,
        (row_idx, first): (usize, usize),
        (products, scores): (&mut Vec<f32>, &mut [f32]),
    ) {
        let Self { op, batch, inputs, .. } = self;
        let end = (batch.rows[row_idx].position.0 + 1).min(first + SPAN);
        let keys = self.states.layer(segment_of(batch, row_idx).state, op.layer).index_keys();
        let weights = inputs.head(&op.weights, row_idx, 0);
        let products = grown(products, op.q.n_heads * BLOCK_POSITIONS, 0.0);
        let queries = queries_of(inputs, &op.q, row_idx);
        for block in (first..end).step_by(BLOCK_POSITIONS) {
            let positions = block..end.min(block + BLOCK_POSITIONS);
            let part = ScorePart { queries, keys: keys.rows(0, &positions) };
            table.scores(&ScoreInputs { parts: &[part], next: None }, products);
            let scores = &mut scores[block - first..][..positions.len()];
            scores.fill(0.0);
            for (products, &weight) in products.chunks_exact(BLOCK_POSITIONS).zip(weights) {
                add_weighted(weight, products, scores);
            }
        }
    }
}

/// Adds the products that are not negative, times a weight.
fn add_weighted(weight: f32, products: &[f32], scores: &mut [f32]) {
    for (score, &product) in scores.iter_mut().zip(products) {
        // A comparison keeps NaN; `max` would not.
        let positive = if product < 0.0 { 0.0 } else { product };
        *score += weight * positive;
    }
}

/// Returns the queries of a row, side by side.
fn queries_of<'a>(inputs: &Inputs<'a>, q: &Heads, row_idx: usize) -> StridedRows<'a> {
    let row = inputs.buffer(q.buffer).row(row_idx);
    let values = &row[q.first_col..q.end_col()];
    StridedRows { values, n_rows: q.n_heads, row_len: q.head_dim, stride: q.stride }
}

/// Lists the positions of the largest scores, or NaN if a score is not finite.
#[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
fn choose(scores: &[f32], ranks: &mut Vec<u64>, list: &mut [f32]) {
    // Without an early exit the loop is vectorised.
    if !scores.iter().fold(true, |is_whole, score| is_whole & score.is_finite()) {
        return list.fill(f32::NAN);
    }
    ranks.clear();
    ranks.extend((0_u32..).zip(scores).map(|(position, &score)| rank_of(score, position)));
    ranks.select_nth_unstable(list.len() - 1);
    ranks.truncate(list.len());
    ranks.iter_mut().for_each(|rank| *rank &= u64::from(u32::MAX));
    ranks.sort_unstable();
    for (listed, &position) in list.iter_mut().zip(&*ranks) {
        *listed = position as f32;
    }
}

/// Returns a number that is smaller for a larger score, and for the lower of two positions with
/// equal scores. Its lower half is the position.
fn rank_of(score: f32, position: u32) -> u64 {
    // The sum makes a zero of -0.
    let bits = (score + 0.0).to_bits();
    let is_negative = bits >> 31 == 1;
    let ascending = if is_negative { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(scores: &[f32], n: usize) -> Vec<f32> {
        let mut list = vec![-1.0; n];
        choose(scores, &mut Vec::new(), &mut list);
        list
    }

    #[test]
    fn ranks_are_in_the_order_of_scores_then_positions() {
        let ordered = [
            (f32::MAX, 9),
            (2.0, 1),
            (2.0, 3),
            (0.0, 4),
            (-0.0, 5),
            (0.0, 6),
            (-1e-40, 0),
            (-1.5, 2),
            (f32::MIN, 7),
        ];
        let ranks = ordered.map(|(score, position)| rank_of(score, position));
        assert!(ranks.is_sorted(), "{ranks:x?}");
    }

    #[test]
    fn chosen_positions_ascend_and_the_lower_of_equals_wins() {
        assert_eq!(chosen(&[1.0, 5.0, -0.0, 0.0, 5.0], 3), [0.0, 1.0, 4.0]);
        assert_eq!(chosen(&[-0.0, 0.0, -0.0, 0.0], 2), [0.0, 1.0]);
        assert_eq!(chosen(&[-2.0, -1.0], 2), [0.0, 1.0]);
        assert_eq!(chosen(&[-2.0, -1.0, -3.0], 1), [1.0]);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(chosen(&[1.0, broken, 0.5], 2).iter().all(|it| it.is_nan()));
        }
    }
}
