//! The choice of the positions that a row attends to, and the keys of blocks of positions.
//!
//! Rows are scored in groups, so that the scores of a long context take a bounded amount of memory;
//! within a group, spans of blocks of all rows are divided among threads, and then the rows.
//! **Invariant:** a score depends only on its row and its block, and the order of blocks with
//! scores is total, so the division changes no choice. An averaged key depends on the keys of its
//! block as they are stored, whichever step stored them.

use half::f16;
use moeflux_kernels::{
    BLOCK_POSITIONS, CachedRows, CachedValues, KernelTable, ScoreInputs, ScorePart, StridedRows,
};

use crate::backend::cpu::attention::segment_of;
use crate::backend::cpu::split::SplitItems;
use crate::backend::cpu::{Inputs, PlanExecutor, grown};
use crate::backend::host::HostStates;
use crate::backend::kv::{GatheredRows, KvTable};
use crate::ops::{Batch, ChosenPositions, Heads, PoolKeys, SelectPositions};

/// Blocks that a thread scores before it takes others.
const SPAN: usize = 512;

/// Maximum scores kept at a time: 16 MiB. One row may have more.
const N_SCORES_MAX: usize = 1 << 22;

/// Products that cost as much as one value read from memory.
const PRODUCTS_PER_VALUE: usize = 8;

/// Scratch of one thread; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct SelectionScratch {
    score: ScoreScratch,
    /// Scores and blocks of one row: see [`rank_of`].
    ranks: Vec<u64>,
}

/// Scratch of scores.
#[derive(Debug, Default)]
struct ScoreScratch {
    /// `[heads, BLOCK_POSITIONS]`.
    products: Vec<f32>,
    /// Keys of blocks, which do not lie side by side.
    keys: GatheredRows,
}

impl PlanExecutor {
    pub(super) fn pool_keys(&mut self, op: &PoolKeys, batch: &Batch<'_>) {
        let mut out = self.take_output(op.out.buffer, &[op.k], batch.rows.len());
        let (written, snapshot) = (op.out.buffer, &self.scratch.snapshot);
        let inputs = Inputs { buffers: &self.buffers, written, snapshot };
        for segment in batch.segments {
            let keys = self.states.layer_mut(segment.state, op.layer).index_keys_mut();
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position.0;
                let own = inputs.head(&op.k, row_idx, 0);
                let row = &mut out.values[row_idx * out.n_cols..][..out.n_cols];
                let pooled = &mut row[op.out.cols(0)];
                if (position + 1).is_multiple_of(op.block) {
                    average(keys, (position, op.block), own, pooled);
                } else {
                    keys.put(0, position, own);
                    pooled.copy_from_slice(own);
                }
            }
        }
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn select_positions(&mut self, op: &SelectPositions, batch: &Batch<'_>) {
        let chosen = &op.chosen;
        let list = &chosen.list;
        let reads = [op.q, op.k, op.weights.unwrap_or(op.q)];
        let mut out = self.take_output(list.buffer, &reads, batch.rows.len());
        let (written, snapshot) = (list.buffer, &self.scratch.snapshot);
        let inputs = Inputs { buffers: &self.buffers, written, snapshot };
        append(&mut self.states, op, batch, &inputs);
        let position_of = |row_idx: usize| batch.rows[row_idx].position.0;
        let chooses = |row_idx: &usize| !chosen.is_all(position_of(*row_idx));
        let rows: Vec<usize> = (0..batch.rows.len()).filter(chooses).collect();
        let n_blocks = |row_idx: usize| (position_of(row_idx) + 1) / chosen.block;
        let n_blocks_max = rows.iter().map(|row_idx| n_blocks(*row_idx)).max().unwrap_or(0);
        let stride = n_blocks_max.next_multiple_of(SPAN).max(SPAN);
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
                for (item, scores) in range.zip(scores.chunks_exact_mut(SPAN)) {
                    let place = (rows[item * SPAN / stride], item * SPAN % stride);
                    task.span(common.table, place, (&mut worker.selection.score, scores));
                }
            });
            let scores = &*scores;
            let offset = |item: usize| match rows.get(item) {
                Some(row_idx) => row_idx * n_cols,
                None => rows.last().map_or(0, |row_idx| (row_idx + 1) * n_cols),
            };
            let items =
                SplitItems { n_items: rows.len(), align: 1, cost: 4 * n_blocks_max, offset };
            common.split.ranges(&mut out.values, &items, &|range, values| {
                let mut worker = common.worker();
                let ranks = &mut worker.selection.ranks;
                let base = rows[range.start] * n_cols;
                for item in range {
                    let row_idx = rows[item];
                    let scores = &scores[item * stride..][..n_blocks(row_idx)];
                    let row = &mut values[row_idx * n_cols - base..][..n_cols];
                    let place = (chosen, position_of(row_idx));
                    choose(scores, ranks, place, &mut row[list.cols(0)]);
                }
            });
        }
        self.buffers.put(list.buffer, out);
    }
}

/// Averages the keys of the block that ends at a position, whose own key is not stored.
#[expect(clippy::cast_precision_loss, reason = "a block has few positions")]
fn average(keys: &KvTable, (position, block): (usize, usize), own: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for earlier in position + 1 - block..position {
        match keys.rows(0, &(earlier..earlier + 1)).values {
            CachedValues::F32(values) => add(out, values.iter().copied()),
            CachedValues::F16(values) => {
                add(out, values.iter().map(|bits| f16::from_bits(*bits).to_f32()));
            }
            CachedValues::Codes { .. } => unreachable!("index keys are not rounded to codes"),
        }
    }
    add(out, own.iter().copied());
    out.iter_mut().for_each(|sum| *sum /= block as f32);
}

fn add(sums: &mut [f32], values: impl Iterator<Item = f32>) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Copies the index keys of rows that complete a block to their sessions' caches.
fn append(states: &mut HostStates, op: &SelectPositions, batch: &Batch<'_>, inputs: &Inputs<'_>) {
    for segment in batch.segments {
        let table = states.layer_mut(segment.state, op.layer).index_keys_mut();
        assert_eq!(table.shape(), (1, op.k.head_dim), "index keys of the cache");
        for row_idx in segment.rows.clone() {
            let position = batch.rows[row_idx].position.0;
            if (position + 1).is_multiple_of(op.chosen.block) {
                table.put(0, position, inputs.head(&op.k, row_idx, 0));
            }
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
    /// Computes the scores of a row for the blocks from `first` on that it sees.
    fn span(
        &self,
        table: &'static KernelTable,
        (row_idx, first): (usize, usize),
        (scratch, scores): (&mut ScoreScratch, &mut [f32]),
    ) {
        let Self { op, batch, inputs, .. } = self;
        let n_blocks = (batch.rows[row_idx].position.0 + 1) / op.chosen.block;
        let end = n_blocks.min(first + SPAN);
        let keys = self.states.layer(segment_of(batch, row_idx).state, op.layer).index_keys();
        let weights = op.weights.as_ref().map(|weights| inputs.head(weights, row_idx, 0));
        let products = grown(&mut scratch.products, op.q.n_heads * BLOCK_POSITIONS, 0.0);
        let queries = queries_of(inputs, &op.q, row_idx);
        for begin in (first..end).step_by(BLOCK_POSITIONS) {
            let blocks = begin..end.min(begin + BLOCK_POSITIONS);
            let n_scores = blocks.len();
            let keys = keys_of(keys, blocks, op.chosen.block, &mut scratch.keys);
            let part = ScorePart { queries, keys };
            table.scores(&ScoreInputs { parts: &[part], next: None }, products);
            let scores = &mut scores[begin - first..][..n_scores];
            scores.fill(0.0);
            for (head_idx, products) in products.chunks_exact(BLOCK_POSITIONS).enumerate() {
                add_weighted(weights.map_or(1.0, |weights| weights[head_idx]), products, scores);
            }
        }
    }
}

/// Returns the keys of blocks, which their last positions have.
fn keys_of<'a>(
    keys: &'a KvTable,
    blocks: std::ops::Range<usize>,
    block: usize,
    scratch: &'a mut GatheredRows,
) -> CachedRows<'a> {
    if block == 1 {
        return keys.rows(0, &blocks);
    }
    let mut positions = [0; BLOCK_POSITIONS];
    let positions = &mut positions[..blocks.len()];
    for (position, idx) in positions.iter_mut().zip(blocks) {
        *position = (idx + 1) * block - 1;
    }
    keys.gather(0, positions, scratch)
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

/// Lists the positions of the blocks with the largest scores, and those after the last whole block;
/// NaN if a score is not finite.
#[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
fn choose(
    scores: &[f32],
    ranks: &mut Vec<u64>,
    (chosen, position): (&ChosenPositions, usize),
    list: &mut [f32],
) {
    // Without an early exit the loop is vectorised.
    if !scores.iter().fold(true, |is_whole, score| is_whole & score.is_finite()) {
        return list.fill(f32::NAN);
    }
    ranks.clear();
    ranks.extend((0_u32..).zip(scores).map(|(block, &score)| rank_of(score, block)));
    ranks.select_nth_unstable(chosen.n_blocks() - 1);
    ranks.truncate(chosen.n_blocks());
    ranks.iter_mut().for_each(|rank| *rank &= u64::from(u32::MAX));
    ranks.sort_unstable();
    let block = chosen.block;
    for (listed, &idx) in list.chunks_exact_mut(block).zip(&*ranks) {
        let first = usize::try_from(idx).expect("a block of the context") * block;
        for (offset, listed) in listed.iter_mut().enumerate() {
            *listed = (first + offset) as f32;
        }
    }
    let after = &mut list[chosen.n_blocks() * block..];
    for (listed, position) in after.iter_mut().zip(scores.len() * block..=position) {
        *listed = position as f32;
    }
}

/// Returns a number that is smaller for a larger score, and for the lower of two blocks with equal
/// scores. Its lower half is the block.
fn rank_of(score: f32, block: u32) -> u64 {
    // The sum makes a zero of -0.
    let bits = (score + 0.0).to_bits();
    let is_negative = bits >> 31 == 1;
    let ascending = if is_negative { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Workspace;

    fn chosen_blocks(scores: &[f32], n: usize, (block, position): (usize, usize)) -> Vec<f32> {
        let n_cols = ChosenPositions::n_cols(n, block);
        let chosen = ChosenPositions { list: Workspace::default().buffer("list", n_cols), block };
        let mut list = vec![-1.0; n_cols];
        choose(scores, &mut Vec::new(), (&chosen, position), &mut list);
        list
    }

    fn chosen(scores: &[f32], n: usize) -> Vec<f32> {
        chosen_blocks(scores, n, (1, scores.len() - 1))
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

    #[test]
    fn blocks_are_listed_whole_and_the_rest_behind_them() {
        let scores = [1.0, 3.0, 2.0];
        assert_eq!(chosen_blocks(&scores, 1, (3, 8)), [3.0, 4.0, 5.0, -1.0, -1.0]);
        assert_eq!(chosen_blocks(&scores, 1, (3, 10)), [3.0, 4.0, 5.0, 9.0, 10.0]);
        assert_eq!(chosen_blocks(&scores, 2, (2, 6)), [2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
