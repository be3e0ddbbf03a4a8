//! Queries against quantised keys: rounded to int8 once per job, then multiplied like any rows of
//! activations.
//!
//! **Invariant:** each query is rounded separately, and a score belongs to one query and one
//! position.

use std::ops::Range;

use moeflux_kernels::{
    BLOCK_POSITIONS, CodeShape, IntInputs, IntProduct, IntRows, IntScratch, KernelTable, Matrix,
    ROWS_PER_BLOCK, RepackedRows,
};

use crate::backend::cpu::grown;

/// Scratch of one thread; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct RoundedScratch {
    rows: IntRows,
    /// 0, 1, 2, ..
    picks: Vec<usize>,
    /// All queries of a job.
    repacked: RepackedRows,
    part: PartScratch,
}

/// Scratch of single products.
#[derive(Debug, Default)]
struct PartScratch {
    /// Some queries of a job.
    repacked: RepackedRows,
    product: IntScratch,
    /// `[block of positions][query][position of the block]`.
    values: Vec<f32>,
}

/// The queries of a job.
pub(super) struct RoundedQueries<'a> {
    table: &'static KernelTable,
    rows: &'a IntRows,
    picks: &'a [usize],
    all: IntInputs<'a>,
    part: &'a mut PartScratch,
}

/// How scores are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ScoreStore {
    /// They replace the existing values.
    Replace,
    /// They are added to the existing values.
    Add,
}

impl<'a> RoundedQueries<'a> {
    /// Rounds queries, whose rows have whole groups of columns.
    pub(super) fn new(
        table: &'static KernelTable,
        shape: CodeShape,
        queries: &[f32],
        scratch: &'a mut RoundedScratch,
    ) -> Self {
        let RoundedScratch { rows, picks, repacked, part } = scratch;
        let n_queries = queries.len() / shape.n_cols;
        rows.reshape(shape.kind(), n_queries, shape.n_cols);
        for (row_idx, query) in queries.chunks_exact(shape.n_cols).enumerate() {
            rows.fill(table, row_idx, query);
        }
        picks.extend(picks.len()..n_queries);
        let (rows, picks) = (&*rows, &picks[..n_queries]);
        Self { table, rows, picks, all: table.repack(rows, picks, repacked), part }
    }

    /// Computes `scores[query][position]` of some queries and some rows of codes. A row of scores
    /// has [`BLOCK_POSITIONS`] places.
    pub(super) fn scores(
        &mut self,
        (matrix, rows): (Matrix<'_>, Range<usize>),
        queries: Range<usize>,
        (scores, store): (&mut [f32], ScoreStore),
    ) {
        let PartScratch { repacked, product: scratch, values } = &mut *self.part;
        let (n_queries, n_positions) = (queries.len(), rows.len());
        let x = if n_queries == self.picks.len() {
            self.all
        } else {
            self.table.repack(self.rows, &self.picks[queries], repacked)
        };
        let product = IntProduct { matrix, rows, x };
        let values = grown(values, product.n_outputs(), 0.0);
        self.table.int_matmul(&product, scratch, values);
        let blocks = values.chunks_exact(n_queries * ROWS_PER_BLOCK);
        for (first, values) in (0..n_positions).step_by(ROWS_PER_BLOCK).zip(blocks) {
            let n = ROWS_PER_BLOCK.min(n_positions - first);
            let queries = values.chunks_exact(ROWS_PER_BLOCK);
            for (values, scores) in queries.zip(scores.chunks_exact_mut(BLOCK_POSITIONS)) {
                let scores = &mut scores[first..][..n];
                match store {
                    ScoreStore::Replace => scores.copy_from_slice(&values[..n]),
                    ScoreStore::Add => {
                        scores.iter_mut().zip(values).for_each(|(it, add)| *it += add);
                    }
                }
            }
        }
    }
}
