//! Runs one job of attention: its queries side by side, block by block.
//!
//! **Invariant:** rows that see the same positions of a block go through the kernels together. That
//! changes no result, because each query has separate sums. Queries against quantised keys are
//! rounded once per job.

use std::ops::Range;

use moeflux_kernels::{
    BLOCK_POSITIONS, CachedRows, CachedValues, KernelTable, RowOp, ScoreInputs, ScorePart,
    SoftmaxState, SoftmaxUpdate, Spread, StridedRows, WeightedRows,
};

use crate::backend::cpu::attention::jobs::{AttentionJob, split_results};
use crate::backend::cpu::attention::merge::{self, PartialSoftmax};
use crate::backend::cpu::attention::rounded::{RoundedQueries, RoundedScratch, ScoreStore};
use crate::backend::cpu::attention::{AttentionForm, SPAN};
use crate::backend::cpu::{Inputs, grown};
use crate::backend::host::{HostLayerState, HostStates};
use crate::backend::kv::{GatheredRows, KvTable};
use crate::ops::{Batch, ChosenPositions, Heads};

/// Scratch of one thread; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct TaskScratch {
    /// `[queries, key dim]`, for each table of the cache.
    queries: [Vec<f32>; 2],
    /// The same queries, rounded, if the cache is quantised.
    rounded: [RoundedScratch; 2],
    /// `[queries, BLOCK_POSITIONS]`.
    scores: Vec<f32>,
    /// `[queries]`.
    factors: Vec<f32>,
    /// `[queries]`.
    running: Vec<SoftmaxState>,
    /// `[queries, value dim]`, for the current span.
    values: Vec<f32>,
    /// Chosen positions of a block, from each table of the cache.
    gathered: [GatheredRows; 2],
}

/// Attention over a step: the inputs of all its jobs.
pub(super) struct AttentionTask<'a> {
    pub(super) form: &'a AttentionForm<'a>,
    pub(super) batch: &'a Batch<'a>,
    pub(super) inputs: Inputs<'a>,
    pub(super) states: &'a HostStates,
    pub(super) table: &'static KernelTable,
}

impl AttentionTask<'_> {
    /// Writes outputs, maxima and sums of all queries.
    pub(super) fn run(&self, job: &AttentionJob, scratch: &mut TaskScratch, results: &mut [f32]) {
        let form = self.form;
        let n_queries = job.n_queries();
        let layer = self.states.layer(job.state, form.layer);
        let HostLayerState::Positions { first, second, .. } = layer else {
            unreachable!("attention keeps positions");
        };
        let tables = [first, second];
        let TaskScratch { queries, rounded, scores, factors, running, values, gathered } = scratch;
        let rounded = self.pack_queries(job, tables, (&mut *queries, rounded));
        let inputs = JobInputs {
            tables,
            head_idx: job.first_head / form.n_sharing_heads(),
            queries,
            end: self.batch.rows[job.rows.clone()]
                .iter()
                .map(|it| form.seen(it.position.0).end)
                .max()
                .unwrap_or(0),
        };
        let (out, maxima, sums) = split_results(results, n_queries);
        let mut scratch = JobScratch {
            scores: grown(scores, n_queries * BLOCK_POSITIONS, 0.0),
            factors: grown(factors, n_queries, 0.0),
            running: grown(running, n_queries, SoftmaxState::EMPTY),
            values: grown(values, out.len(), 0.0),
            rounded,
            gathered,
        };
        maxima.fill(SoftmaxState::EMPTY.max);
        sums.fill(SoftmaxState::EMPTY.sum);
        let dim = form.out.head_dim;
        for span in job.spans.clone() {
            self.span(job, span, &inputs, &mut scratch);
            for query in 0..n_queries {
                let mut total = SoftmaxState { max: maxima[query], sum: sums[query] };
                let values = &scratch.values[query * dim..][..dim];
                let part = PartialSoftmax { running: scratch.running[query], values };
                merge::add(self.table, &mut total, &mut out[query * dim..][..dim], part);
                (maxima[query], sums[query]) = (total.max, total.sum);
            }
        }
    }

    /// Copies a job's queries side by side, and spreads and rounds those for quantised keys.
    fn pack_queries<'a>(
        &self,
        job: &AttentionJob,
        tables: [&KvTable; 2],
        (queries, scratch): (&mut [Vec<f32>; 2], &'a mut [RoundedScratch; 2]),
    ) -> [Option<RoundedQueries<'a>>; 2] {
        let mut rounded = [None, None];
        for (i, (scratch, rounded)) in scratch.iter_mut().zip(&mut rounded).enumerate() {
            let Some(heads) = self.form.queries[i] else { continue };
            let shape = tables[i].code_shape();
            let row_len = shape.map_or(heads.head_dim, |shape| shape.n_cols);
            let values = grown(&mut queries[i], job.n_queries() * row_len, 0.0);
            self.pack(job, heads, (&mut *values, row_len));
            if let Some(shape) = shape {
                if self.form.is_spread(i) {
                    self.table.apply(&RowOp::Spread(Spread::of_query(shape.n_cols)), values);
                }
                *rounded = Some(RoundedQueries::new(self.table, shape, values, scratch));
            }
        }
        rounded
    }

    /// Copies a job's queries side by side, padded with zeros.
    fn pack(&self, job: &AttentionJob, heads: &Heads, (values, row_len): (&mut [f32], usize)) {
        for (query, values) in values.chunks_exact_mut(row_len).enumerate() {
            let row_idx = job.rows.start + query / job.n_heads;
            let head_idx = job.first_head + query % job.n_heads;
            let (values, beyond) = values.split_at_mut(heads.head_dim);
            values.copy_from_slice(self.inputs.head(heads, row_idx, head_idx));
            beyond.fill(0.0);
        }
    }

    /// Computes the blocks of one span, starting empty.
    fn span(
        &self,
        job: &AttentionJob,
        span: usize,
        inputs: &JobInputs<'_>,
        scratch: &mut JobScratch<'_>,
    ) {
        scratch.running.fill(SoftmaxState::EMPTY);
        scratch.values.fill(0.0);
        for first in (span * SPAN..(span + 1) * SPAN).step_by(BLOCK_POSITIONS) {
            let seen = |row_idx: usize| {
                let seen = self.form.seen(self.batch.rows[row_idx].position.0);
                seen.start.max(first)..seen.end.min(first + BLOCK_POSITIONS)
            };
            let list = |row_idx: usize| self.form.list_of(self.batch.rows[row_idx].position.0);
            let mut row_idx = job.rows.start;
            while row_idx < job.rows.end {
                let positions = seen(row_idx);
                let list_of_row = list(row_idx);
                let is_like = |&other: &usize| {
                    list_of_row.is_none() && list(other).is_none() && seen(other) == positions
                };
                let n_rows = 1 + (row_idx..job.rows.end).skip(1).take_while(is_like).count();
                if !positions.is_empty() {
                    let first_query = (row_idx - job.rows.start) * job.n_heads;
                    let queries = first_query..first_query + n_rows * job.n_heads;
                    let list = list_of_row.map(|list| self.inputs.head(&list, row_idx, 0));
                    self.block(inputs, queries, (positions, list), scratch);
                }
                row_idx += n_rows;
            }
        }
    }

    /// Computes some queries over some positions of a block, or over those that are listed at these
    /// places.
    fn block(
        &self,
        inputs: &JobInputs<'_>,
        queries: Range<usize>,
        (positions, list): (Range<usize>, Option<&[f32]>),
        scratch: &mut JobScratch<'_>,
    ) {
        let form = self.form;
        let n_positions = positions.len();
        let scores = &mut scratch.scores[..queries.len() * BLOCK_POSITIONS];
        let rows = match list {
            Some(list) => inputs.listed_rows(&list[positions.clone()], scratch.gathered),
            None => [0, 1].map(|table_idx| inputs.rows(table_idx, &positions)),
        };
        let values = rows[form.values];
        // Latents have just been read as keys, so only other values are prefetched.
        let next = (form.values != 0 && list.is_none()).then_some(values);
        self.score(inputs, (&queries, rows, next), (&mut scratch.rounded, &mut *scores));
        let factors = &mut scratch.factors[..queries.len()];
        self.table.update_softmax(&mut SoftmaxUpdate {
            scores,
            n_positions,
            scale: form.scale,
            states: &mut scratch.running[queries.clone()],
            factors,
        });
        let dim = form.out.head_dim;
        let following = inputs.tables[0].following(&positions, inputs.end, BLOCK_POSITIONS);
        let has_next = list.is_none() && !following.is_empty();
        let next = has_next.then(|| inputs.rows(0, &following));
        let sum = WeightedRows { weights: scores, factors, rows: values, next };
        self.table.add_weighted(&sum, &mut scratch.values[queries.start * dim..queries.end * dim]);
    }

    /// Computes the products of queries with keys.
    fn score(
        &self,
        inputs: &JobInputs<'_>,
        (queries, keys, next): (&Range<usize>, [CachedRows<'_>; 2], Option<CachedRows<'_>>),
        (rounded, scores): (&mut [Option<RoundedQueries<'_>>; 2], &mut [f32]),
    ) {
        if rounded.iter().any(Option::is_some) {
            for (i, rounded) in rounded.iter_mut().enumerate() {
                let (Some(rounded), CachedValues::Codes { matrix, first_row }) =
                    (rounded, keys[i].values)
                else {
                    continue;
                };
                let store = if i == 0 { ScoreStore::Replace } else { ScoreStore::Add };
                let codes = (matrix, first_row..first_row + keys[i].n_rows);
                rounded.scores(codes, queries.clone(), (&mut *scores, store));
            }
            return;
        }
        let first = inputs.part((0, keys[0]), queries);
        if self.form.queries[1].is_some() {
            let second = inputs.part((1, keys[1]), queries);
            self.table.scores(&ScoreInputs { parts: &[first, second], next }, scores);
        } else {
            self.table.scores(&ScoreInputs { parts: &[first], next }, scores);
        }
    }
}

/// Inputs of a job.
struct JobInputs<'a> {
    tables: [&'a KvTable; 2],
    /// Head of the tables.
    head_idx: usize,
    queries: &'a [Vec<f32>; 2],
    /// End of the positions that some query sees.
    end: usize,
}

impl<'a> JobInputs<'a> {
    fn rows(&self, table_idx: usize, positions: &Range<usize>) -> CachedRows<'a> {
        self.tables[table_idx].rows(self.head_idx, positions)
    }

    /// Returns copies of the listed positions from both tables.
    fn listed_rows<'b>(
        &self,
        list: &[f32],
        [first, second]: &'b mut [GatheredRows; 2],
    ) -> [CachedRows<'b>; 2] {
        let mut positions = [0; BLOCK_POSITIONS];
        let positions = &mut positions[..list.len()];
        for (position, &listed) in positions.iter_mut().zip(list) {
            *position = ChosenPositions::position_of(listed);
        }
        [
            self.tables[0].gather(self.head_idx, positions, first),
            self.tables[1].gather(self.head_idx, positions, second),
        ]
    }

    fn part<'b>(
        &'b self,
        (table_idx, keys): (usize, CachedRows<'b>),
        queries: &Range<usize>,
    ) -> ScorePart<'b> {
        let dim = keys.row_len;
        let values = &self.queries[table_idx][queries.start * dim..queries.end * dim];
        let queries = StridedRows { values, n_rows: queries.len(), row_len: dim, stride: dim };
        ScorePart { queries, keys }
    }
}

/// Scratch of a job, in the size that it needs.
struct JobScratch<'a> {
    scores: &'a mut [f32],
    factors: &'a mut [f32],
    running: &'a mut [SoftmaxState],
    values: &'a mut [f32],
    /// Present if the cache is quantised.
    rounded: [Option<RoundedQueries<'a>>; 2],
    gathered: &'a mut [GatheredRows; 2],
}
