//! The choice of the positions that a row attends to, and the keys of blocks of positions.
//!
//! Rows are scored in groups, so that the scores of a long context take a bounded amount of memory;
//! of a group, the queries of rows are packed first, then spans of blocks of all rows are divided
//! among threads, and then the rows.
//! **Invariant:** a score depends only on its row and its block, and the order of blocks with
//! scores is total, so the division changes no choice. An averaged key depends on the keys of its
//! block as they are stored, whichever step stored them.

use half::f16;
use moeflux_kernels::{
    BLOCK_POSITIONS, CachedRows, CachedValues, ChoiceInputs, ChoiceQueries, KernelTable,
    StridedRows,
};

use crate::backend::cpu::attention::segment_of;
use crate::backend::cpu::split::SplitItems;
use crate::backend::cpu::{Common, Inputs, PlanExecutor, grown};
use crate::backend::host::{Buffer, HostStates};
use crate::backend::kv::{GatheredRows, KvTable};
use crate::ops::{Batch, ChosenPositions, Heads, PoolKeys, SelectPositions};

/// Blocks that a thread scores before it takes others.
const SPAN: usize = 512;

/// Maximum scores kept at a time: 16 MiB. One row may have more.
const N_SCORES_MAX: usize = 1 << 22;

/// Maximum rows of a group: their packed queries stay in a cache.
const N_ROWS_MAX: usize = 64;

/// Products that cost as much as one value read from memory.
const PRODUCTS_PER_VALUE: usize = 8;

/// Scratch of a step; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct ChoiceScratch {
    /// See [`ChoiceQueries`]; row after row.
    queries: Vec<f32>,
    /// `[rows, blocks]`, in whole spans.
    scores: Vec<f32>,
    /// `[rows, spans]`: see [`ChoiceTask::floor`].
    floors: Vec<u32>,
}

/// Scratch of one thread; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct SelectionScratch {
    /// Keys of blocks, which do not lie side by side.
    keys: GatheredRows,
    /// Scores of a span: see [`ascending`].
    order: Vec<u32>,
    /// Scores and blocks of one row, twice: see [`rank_of`].
    ranks: Vec<u64>,
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
        for rows in rows.chunks((N_SCORES_MAX / stride).clamp(1, N_ROWS_MAX)) {
            let task = ChoiceTask { op, batch, inputs, states: &self.states, rows };
            let ChoiceScratch { queries, scores, floors } = &mut self.scratch.choice;
            let queries = grown(queries, rows.len() * task.packed_len(), 0.0);
            task.pack(&self.common, queries);
            let scores = grown(scores, rows.len() * stride, 0.0);
            let floors = grown(floors, scores.len() / SPAN, 0);
            task.score(&self.common, queries, (&mut *scores, &mut *floors));
            task.choose(&self.common, (scores, floors), &mut out);
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

/// The choices of some rows of a step.
struct ChoiceTask<'a> {
    op: &'a SelectPositions,
    batch: &'a Batch<'a>,
    inputs: Inputs<'a>,
    states: &'a HostStates,
    /// The rows that do not attend to all positions.
    rows: &'a [usize],
}

impl ChoiceTask<'_> {
    /// Returns the number of packed values of a row's queries.
    fn packed_len(&self) -> usize {
        ChoiceQueries::n_values(self.op.q.n_heads, self.op.q.head_dim)
    }

    /// Returns the number of whole blocks that a row sees.
    fn n_blocks(&self, row_idx: usize) -> usize {
        (self.batch.rows[row_idx].position.0 + 1) / self.op.chosen.block
    }

    /// Packs the queries of all rows.
    fn pack(&self, common: &Common, packed: &mut [f32]) {
        let row_len = self.packed_len();
        let offset = |item: usize| item * row_len;
        let items = SplitItems { n_items: self.rows.len(), align: 1, cost: row_len, offset };
        common.split.ranges(packed, &items, &|range, packed| {
            for (row_idx, packed) in self.rows[range].iter().zip(packed.chunks_exact_mut(row_len)) {
                let weights = self.op.weights.as_ref();
                let weights = weights.map(|weights| self.inputs.head(weights, *row_idx, 0));
                ChoiceQueries::pack(
                    &queries_of(&self.inputs, &self.op.q, *row_idx),
                    weights,
                    packed,
                );
            }
        });
    }

    /// Scores all blocks for all rows.
    fn score(&self, common: &Common, packed: &[f32], (scores, floors): (&mut [f32], &mut [u32])) {
        let (n_heads, n_cols) = (self.op.q.n_heads, self.op.q.head_dim);
        let cost = SPAN * (n_cols + n_heads * n_cols / PRODUCTS_PER_VALUE);
        let (n_items, n_spans) = (floors.len(), floors.len() / self.rows.len());
        common.split.pairs((scores, floors), n_items, cost, &|item, scores, floor| {
            let (idx, first) = (item / n_spans, item % n_spans * SPAN);
            let packed = &packed[idx * self.packed_len()..][..self.packed_len()];
            let queries = ChoiceQueries::new(packed, n_cols);
            let place = (self.rows[idx], first);
            let scratch = &mut common.worker().selection;
            self.span(common.table, (queries, place), (&mut scratch.keys, &mut *scores));
            floor[0] = self.floor(place, scores, &mut scratch.order);
        });
    }

    /// Returns a number for a span of a row's scores. The smallest number of all spans is not above
    /// the last chosen score, since each whole span has its share of scores that are not below it.
    fn floor(&self, (row_idx, first): (usize, usize), scores: &[f32], order: &mut Vec<u32>) -> u32 {
        let n_whole = self.n_blocks(row_idx) / SPAN;
        if first / SPAN >= n_whole.max(1) {
            return u32::MAX;
        }
        let n_share = self.op.chosen.n_blocks().div_ceil(n_whole.max(1));
        if n_whole == 0 || n_share > SPAN {
            return 0;
        }
        order.clear();
        order.extend(scores.iter().map(|score| ascending(*score)));
        *order.select_nth_unstable(SPAN - n_share).1
    }

    /// Computes the scores of a row for the blocks from `first` on that it sees.
    fn span(
        &self,
        table: &'static KernelTable,
        (queries, (row_idx, first)): (ChoiceQueries<'_>, (usize, usize)),
        (scratch, scores): (&mut GatheredRows, &mut [f32]),
    ) {
        let op = self.op;
        let end = self.n_blocks(row_idx).min(first + SPAN);
        let state = segment_of(self.batch, row_idx).state;
        let keys = self.states.layer(state, op.layer).index_keys();
        for begin in (first..end).step_by(BLOCK_POSITIONS) {
            let blocks = begin..end.min(begin + BLOCK_POSITIONS);
            let scores = &mut scores[begin - first..][..blocks.len()];
            let keys = keys_of(keys, blocks, op.chosen.block, scratch);
            table.choice_scores(&ChoiceInputs { queries, keys }, scores);
        }
    }

    /// Lists the choices of all rows.
    fn choose(&self, common: &Common, (scores, floors): (&[f32], &[u32]), out: &mut Buffer) {
        let (rows, chosen, n_cols) = (self.rows, &self.op.chosen, out.n_cols);
        let (stride, n_spans) = (scores.len() / rows.len(), floors.len() / rows.len());
        let offset = |item: usize| match rows.get(item) {
            Some(row_idx) => row_idx * n_cols,
            None => rows.last().map_or(0, |row_idx| (row_idx + 1) * n_cols),
        };
        let items = SplitItems { n_items: rows.len(), align: 1, cost: stride, offset };
        common.split.ranges(&mut out.values, &items, &|range, values| {
            let mut worker = common.worker();
            let ranks = &mut worker.selection.ranks;
            let base = rows[range.start] * n_cols;
            for item in range {
                let row_idx = rows[item];
                let scores = &scores[item * stride..][..self.n_blocks(row_idx)];
                let floor = floors[item * n_spans..][..n_spans].iter().copied().min();
                let row = &mut values[row_idx * n_cols - base..][..n_cols];
                let place = (chosen, self.batch.rows[row_idx].position.0);
                choose((scores, floor.unwrap_or(0)), ranks, place, &mut row[chosen.list.cols(0)]);
            }
        });
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

/// Returns the queries of a row, side by side.
fn queries_of<'a>(inputs: &Inputs<'a>, q: &Heads, row_idx: usize) -> StridedRows<'a> {
    let row = inputs.buffer(q.buffer).row(row_idx);
    let values = &row[q.first_col..q.end_col()];
    StridedRows { values, n_rows: q.n_heads, row_len: q.head_dim, stride: q.stride }
}

/// Lists the positions of the blocks with the largest scores, and those after the last whole block;
/// NaN if a score is not finite. Enough scores are not below `floor`: see [`ascending`].
#[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
fn choose(
    (scores, floor): (&[f32], u32),
    ranks: &mut Vec<u64>,
    (chosen, position): (&ChosenPositions, usize),
    list: &mut [f32],
) {
    // Without an early exit the loop is vectorised.
    if !scores.iter().fold(true, |is_whole, score| is_whole & score.is_finite()) {
        return list.fill(f32::NAN);
    }
    let (candidates, copy) = grown(ranks, 2 * scores.len(), 0).split_at_mut(scores.len());
    let mut n_candidates = 0;
    for (block, &score) in (0_u32..).zip(scores) {
        // Few blocks are candidates, in no pattern: a branch would be mispredicted.
        candidates[n_candidates] = rank_of(score, block);
        n_candidates += usize::from(ascending(score) >= floor);
    }
    let (candidates, copy) = (&candidates[..n_candidates], &mut copy[..n_candidates]);
    copy.copy_from_slice(candidates);
    let last = *copy.select_nth_unstable(chosen.n_blocks() - 1).1;
    let blocks = candidates.iter().filter(|rank| **rank <= last).map(|rank| *rank & BLOCK_OF_RANK);
    let block = chosen.block;
    for (listed, idx) in list.chunks_exact_mut(block).zip(blocks) {
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

/// The bits of a rank that name its block.
const BLOCK_OF_RANK: u64 = 0xffff_ffff;

/// Returns a number that is smaller for a larger score, and for the lower of two blocks with equal
/// scores.
fn rank_of(score: f32, block: u32) -> u64 {
    u64::from(!ascending(score)) << 32 | u64::from(block)
}

/// Returns a number that is larger for a larger score, and the same for both zeros.
fn ascending(score: f32) -> u32 {
    // The sum makes a zero of -0.
    let bits = (score + 0.0).to_bits();
    let is_negative = bits >> 31 == 1;
    if is_negative { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Workspace;

    fn chosen_blocks(scores: &[f32], n: usize, (block, position): (usize, usize)) -> Vec<f32> {
        let n_cols = ChosenPositions::n_cols(n, block);
        let chosen = ChosenPositions { list: Workspace::default().buffer("list", n_cols), block };
        let mut list = vec![-1.0; n_cols];
        choose((scores, 0), &mut Vec::new(), (&chosen, position), &mut list);
        if scores.iter().all(|score| score.is_finite()) {
            // The highest floor that is allowed.
            let mut order: Vec<u32> = scores.iter().map(|score| ascending(*score)).collect();
            order.sort_unstable();
            let mut same = vec![-1.0; n_cols];
            let floor = order[order.len() - n];
            choose((scores, floor), &mut vec![7; 3], (&chosen, position), &mut same);
            assert_eq!(same, list, "with a floor");
        }
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
