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
use crate::backend::kv::KvTable;
use crate::ops::{Batch, Heads};

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
        let HostLayerState::Positions { first, second } = self.states.layer(job.state, form.layer)
        else {
            unreachable!("attention keeps positions");
        };
        let tables = [first, second];
        let TaskScratch { queries, rounded, scores, factors, running, values } = scratch;
        let rounded = self.pack_queries(job, tables, (&mut *queries, rounded));
        let inputs = JobInputs {
            tables,
            head_idx: job.first_head / form.n_sharing_heads(),
            queries,
            end: self.batch.rows[job.rows.clone()]
                .iter()
                .map(|it| it.position.0 + 1)
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
                let position = self.batch.rows[row_idx].position.0;
                let end = (position + 1).min(first + BLOCK_POSITIONS);
                self.form.first_seen(position).max(first)..end
            };
            let mut row_idx = job.rows.start;
            while row_idx < job.rows.end {
                let positions = seen(row_idx);
                let others = (row_idx..job.rows.end).skip(1);
                let n_rows = 1 + others.take_while(|&other| seen(other) == positions).count();
                if !positions.is_empty() {
                    let first_query = (row_idx - job.rows.start) * job.n_heads;
                    let queries = first_query..first_query + n_rows * job.n_heads;
                    self.block(inputs, queries, positions, scratch);
                }
                row_idx += n_rows;
            }
        }
    }

    /// Computes some queries over some positions of a block.
    fn block(
        &self,
        inputs: &JobInputs<'_>,
        queries: Range<usize>,
        positions: Range<usize>,
        scratch: &mut JobScratch<'_>,
    ) {
        let form = self.form;
        let scores = &mut scratch.scores[..queries.len() * BLOCK_POSITIONS];
        // Latents have just been read as keys, so only other values are prefetched.
        let values = inputs.rows(form.values, &positions);
        let next = (form.values != 0).then_some(values);
        self.score(inputs, (&queries, &positions, next), (&mut scratch.rounded, &mut *scores));
        let factors = &mut scratch.factors[..queries.len()];
        self.table.update_softmax(&mut SoftmaxUpdate {
            scores,
            n_positions: positions.len(),
            scale: form.scale,
            states: &mut scratch.running[queries.clone()],
            factors,
        });
        let dim = form.out.head_dim;
        let following = inputs.tables[0].following(&positions, inputs.end, BLOCK_POSITIONS);
        let next = (!following.is_empty()).then(|| inputs.rows(0, &following));
        let sum = WeightedRows { weights: scores, factors, rows: values, next };
        self.table.add_weighted(&sum, &mut scratch.values[queries.start * dim..queries.end * dim]);
    }

    /// Computes the products of queries with keys.
    fn score(
        &self,
        inputs: &JobInputs<'_>,
        (queries, positions, next): (&Range<usize>, &Range<usize>, Option<CachedRows<'_>>),
        (rounded, scores): (&mut [Option<RoundedQueries<'_>>; 2], &mut [f32]),
    ) {
        if rounded.iter().any(Option::is_some) {
            for (i, rounded) in rounded.iter_mut().enumerate() {
                let keys = inputs.rows(i, positions);
                let (Some(rounded), CachedValues::Codes { matrix, first_row }) =
                    (rounded, keys.values)
                else {
                    continue;
                };
                let store = if i == 0 { ScoreStore::Replace } else { ScoreStore::Add };
                let codes = (matrix, first_row..first_row + positions.len());
                rounded.scores(codes, queries.clone(), (&mut *scores, store));
            }
            return;
        }
        let first = inputs.part(0, queries, positions);
        if self.form.queries[1].is_some() {
            let second = inputs.part(1, queries, positions);
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

    fn part(
        &self,
        table_idx: usize,
        queries: &Range<usize>,
        positions: &Range<usize>,
    ) -> ScorePart<'a> {
        let keys = self.rows(table_idx, positions);
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
}
