//! Divides a step's attention into jobs. A job covers some rows and some heads that share a cache
//! head, over one span of positions or over all that the rows see.
//!
//! **Invariant:** every row and head is in the jobs of one group, whose spans together are all that
//! the row sees, ascending; of a list of chosen positions, spans of the list. The division depends
//! on threads and shapes; results do not.

use std::ops::Range;

use moeflux_kernels::SoftmaxState;

use crate::backend::cpu::attention::merge::PartialSoftmax;
use crate::backend::cpu::attention::{AttentionForm, SPAN};
use crate::ids::StateId;
use crate::ops::Batch;

/// Maximum queries of a job: with their outputs they share a core's L2 cache with a block.
const N_QUERIES_MAX: usize = 64;

/// Maximum rows of a job: each row needs separate passes where its visible range begins or ends.
const N_ROWS_MAX: usize = 32;

/// Maximum heads of a job.
const N_HEADS_MAX: usize = 32;

/// Minimum heads per group: with fewer, too little work is done per read of the cache.
const N_HEADS_MIN: usize = 4;

/// Jobs per thread, so that other threads can take over work of late ones.
const N_JOBS_PER_THREAD: usize = 4;

/// Values stored with each query's outputs: the maximum and the sum.
const N_STATS: usize = 2;

/// A unit of work and the offset of its results.
#[derive(Clone, Debug)]
pub(super) struct AttentionJob {
    pub(super) state: StateId,
    pub(super) rows: Range<usize>,
    pub(super) first_head: usize,
    pub(super) n_heads: usize,
    pub(super) spans: Range<usize>,
    /// First value of the results: `[rows, heads, value dim]`, then maxima, then sums.
    offset: usize,
}

impl AttentionJob {
    /// Returns rows times heads. Queries are ordered by row.
    pub(super) fn n_queries(&self) -> usize {
        self.rows.len() * self.n_heads
    }
}

/// Location of a row's jobs: those of group `g` start at `first_job + g * n_parts`.
#[derive(Clone, Copy, Debug)]
struct RowJobs {
    first_job: usize,
    n_parts: usize,
}

/// Grouping of heads and blocking of rows.
#[derive(Clone, Copy, Debug, Default)]
struct JobShape {
    heads_per_group: usize,
    rows_per_block: usize,
    /// Whether a job covers all spans, one after another.
    takes_all_spans: bool,
}

/// All jobs of a step, block of rows by block of rows.
#[derive(Debug, Default)]
pub(super) struct AttentionJobs {
    shape: JobShape,
    jobs: Vec<AttentionJob>,
    rows: Vec<RowJobs>,
    n_values: usize,
    n_spans_max: usize,
}

impl AttentionJobs {
    /// Divides a step for `n_threads` threads.
    pub(super) fn cut(&mut self, form: &AttentionForm<'_>, batch: &Batch<'_>, n_threads: usize) {
        self.jobs.clear();
        self.rows.clear();
        self.n_values = 0;
        let spans = |rows| spans_of(form, batch, rows).len();
        self.n_spans_max =
            (0..batch.rows.len()).map(|row_idx| spans(row_idx..row_idx + 1)).max().unwrap_or(0);
        self.shape = JobShape::new(form, batch, self.n_spans_max, n_threads);
        for segment in batch.segments {
            for first in segment.rows.clone().step_by(self.shape.rows_per_block) {
                let rows = first..segment.rows.end.min(first + self.shape.rows_per_block);
                self.add_block(form, batch, segment.state, rows);
            }
        }
    }

    fn add_block(
        &mut self,
        form: &AttentionForm<'_>,
        batch: &Batch<'_>,
        state: StateId,
        rows: Range<usize>,
    ) {
        let spans = spans_of(form, batch, rows.clone());
        let spans_per_job = if self.shape.takes_all_spans { spans.len() } else { 1 };
        let row_jobs =
            RowJobs { first_job: self.jobs.len(), n_parts: spans.len().div_ceil(spans_per_job) };
        self.rows.resize(self.rows.len() + rows.len(), row_jobs);
        for group_idx in 0..self.shape.n_groups(form) {
            let heads = self.shape.heads(form, group_idx);
            for first in spans.clone().step_by(spans_per_job) {
                let job = AttentionJob {
                    state,
                    rows: rows.clone(),
                    first_head: heads.start,
                    n_heads: heads.len(),
                    spans: first..spans.end.min(first + spans_per_job),
                    offset: self.n_values,
                };
                self.n_values += job.n_queries() * (form.out.head_dim + N_STATS);
                self.jobs.push(job);
            }
        }
    }

    /// Returns the jobs, in the order of their offsets.
    pub(super) fn all(&self) -> &[AttentionJob] {
        &self.jobs
    }

    /// Returns the number of values of all results.
    pub(super) fn n_values(&self) -> usize {
        self.n_values
    }

    /// Returns the start of a job's results. For the index past the last job, returns the end.
    pub(super) fn offset(&self, job_idx: usize) -> usize {
        self.jobs.get(job_idx).map_or(self.n_values, |job| job.offset)
    }

    /// Returns the approximate number of cache values that a job reads.
    pub(super) fn cost(&self, form: &AttentionForm<'_>) -> usize {
        let n_spans = if self.shape.takes_all_spans { self.n_spans_max } else { 1 };
        n_spans * SPAN * (form.entries[0].head_dim + form.entries[1].head_dim)
    }

    /// Returns the approximate number of values read to merge one head of one row.
    pub(super) fn merge_cost(&self, form: &AttentionForm<'_>) -> usize {
        let n_parts = if self.shape.takes_all_spans { 1 } else { self.n_spans_max };
        n_parts * form.out.head_dim
    }

    /// Returns the jobs' results for one head of one row, in ascending order of spans.
    pub(super) fn parts<'a>(
        &'a self,
        form: &AttentionForm<'_>,
        row_idx: usize,
        head_idx: usize,
        results: &'a [f32],
    ) -> impl Iterator<Item = PartialSoftmax<'a>> {
        let RowJobs { first_job, n_parts } = self.rows[row_idx];
        let group_idx = self.shape.group_of(form, head_idx);
        let jobs = &self.jobs[first_job + group_idx * n_parts..][..n_parts];
        let dim = form.out.head_dim;
        jobs.iter().map(move |job| {
            let n_queries = job.n_queries();
            let query = (row_idx - job.rows.start) * job.n_heads + head_idx - job.first_head;
            let results = &results[job.offset..][..n_queries * (dim + N_STATS)];
            let (values, stats) = results.split_at(n_queries * dim);
            let running = SoftmaxState { max: stats[query], sum: stats[n_queries + query] };
            PartialSoftmax { running, values: &values[query * dim..][..dim] }
        })
    }
}

/// Splits a job's results into outputs, maxima and sums.
pub(super) fn split_results(
    results: &mut [f32],
    n_queries: usize,
) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let (values, stats) = results.split_at_mut(results.len() - n_queries * N_STATS);
    let (maxima, sums) = stats.split_at_mut(n_queries);
    (values, maxima, sums)
}

impl JobShape {
    fn new(form: &AttentionForm<'_>, batch: &Batch<'_>, n_spans: usize, n_threads: usize) -> Self {
        let n_rows = batch.rows.len();
        let mut shape = Self {
            heads_per_group: form.n_sharing_heads().min(N_HEADS_MAX),
            rows_per_block: 1,
            takes_all_spans: false,
        };
        // With more threads than groups, it is better to read the cache twice than to leave threads
        // idle.
        while shape.heads_per_group > N_HEADS_MIN
            && n_rows * n_spans * shape.n_groups(form) < n_threads
        {
            shape.heads_per_group = shape.heads_per_group.div_ceil(2);
        }
        let n_groups = shape.n_groups(form);
        let fair = n_rows * n_groups / (N_JOBS_PER_THREAD * n_threads);
        let largest = (N_QUERIES_MAX / shape.heads_per_group).clamp(1, N_ROWS_MAX);
        shape.rows_per_block = fair.clamp(1, largest);
        let blocks = batch.segments.iter().map(|it| it.rows.len().div_ceil(shape.rows_per_block));
        // Results per span take memory, so they are for steps of few rows.
        let n_jobs = blocks.sum::<usize>() * n_groups;
        shape.takes_all_spans = n_threads == 1 || n_jobs >= 2 * n_threads;
        shape
    }

    /// Returns the groups per cache head.
    fn groups_per_key_head(&self, form: &AttentionForm<'_>) -> usize {
        form.n_sharing_heads().div_ceil(self.heads_per_group)
    }

    fn n_groups(&self, form: &AttentionForm<'_>) -> usize {
        form.entries[0].n_heads * self.groups_per_key_head(form)
    }

    /// Returns the heads of a group.
    fn heads(&self, form: &AttentionForm<'_>, group_idx: usize) -> Range<usize> {
        let n_groups = self.groups_per_key_head(form);
        let key_head = group_idx / n_groups;
        let first = group_idx % n_groups * self.heads_per_group;
        let end = form.n_sharing_heads().min(first + self.heads_per_group);
        key_head * form.n_sharing_heads() + first..key_head * form.n_sharing_heads() + end
    }

    fn group_of(&self, form: &AttentionForm<'_>, head_idx: usize) -> usize {
        let (key_head, sharer) =
            (head_idx / form.n_sharing_heads(), head_idx % form.n_sharing_heads());
        key_head * self.groups_per_key_head(form) + sharer / self.heads_per_group
    }
}

/// Returns the spans that some rows of one session see.
fn spans_of(form: &AttentionForm<'_>, batch: &Batch<'_>, rows: Range<usize>) -> Range<usize> {
    let seen = || batch.rows[rows.clone()].iter().map(|row| form.seen(row.position.0));
    let first = seen().map(|seen| seen.start).min().unwrap_or(0);
    let end = seen().map(|seen| seen.end).max().unwrap_or(1);
    first / SPAN..end.div_ceil(SPAN)
}
