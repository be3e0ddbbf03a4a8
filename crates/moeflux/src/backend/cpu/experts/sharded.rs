//! Experts of which this machine has only some rows. The up half runs first; the down half runs
//! when the values of all machines are complete.
//!
//! **Invariant:** each value equals that of a whole expert at the same place. Columns are summed in
//! ascending expert index, chunk by chunk.

use crate::backend::ShardValues;
use crate::backend::cpu::PlanExecutor;
use crate::backend::cpu::experts::{DownProduct, ExpertRows, ExpertScratch, UpProduct};
use crate::experts::Arrived;
use crate::ids::ExpertIdx;
use crate::ops::{ExpertDown, ExpertUp};

impl PlanExecutor {
    pub(in crate::backend::cpu) fn begin_chunk(
        &mut self,
        experts: &[ExpertIdx],
        n_inner: usize,
    ) -> usize {
        let Self { routes, experts: ExpertScratch { chunk, .. }, .. } = self;
        assert!(experts.is_sorted_by(|a, b| a < b), "experts ascend, each once");
        chunk.begin(experts.iter().map(|it| (*it, routes.uses_of(*it).count())), n_inner)
    }

    pub(in crate::backend::cpu) fn expert_up(&mut self, op: &ExpertUp, arrived: &Arrived<'_>) {
        self.gather_uses(arrived);
        let ExpertUp { x, n_inner, rows, limit, biases } = op;
        let up = UpProduct {
            x,
            first_row: rows.start,
            n_bias_rows: *n_inner,
            limit: *limit,
            biases: *biases,
        };
        self.multiply_up(&up, arrived);
        let ExpertScratch { groups, inner, chunk, .. } = &mut self.experts;
        let layout = ExpertRows { groups, n_rows: rows.len() };
        for group in groups.iter() {
            let first = chunk.first_use(arrived.expert(group.arrived_idx));
            for (place, use_idx) in group.uses.clone().enumerate() {
                let row = &mut chunk.inner[(first + place) * n_inner..][rows.clone()];
                layout.copy_use(inner, use_idx, row);
            }
        }
    }

    pub(in crate::backend::cpu) fn expert_down(&mut self, op: &ExpertDown, arrived: &Arrived<'_>) {
        self.gather_uses(arrived);
        let Self { common, experts, .. } = self;
        let ExpertScratch { groups, uses, down_x, chunk, n_summed, .. } = experts;
        assert_eq!(uses.len(), chunk.n_uses(), "a wave goes on with all of its experts");
        let Some(first) = groups.first() else { return };
        let layout = arrived.view(first.arrived_idx).down.layout();
        down_x.prepare(common, layout, uses.len(), &|use_idx, fill| {
            fill(&chunk.inner[use_idx * chunk.n_inner..][..chunk.n_inner]);
        });
        let n_before = *n_summed;
        *n_summed += uses.len();
        let ExpertDown { sum, n_hidden, rows, biases } = op;
        let down = DownProduct {
            sum,
            first_row: rows.start,
            n_bias_rows: *n_hidden,
            bias: biases.map(|biases| biases.down),
        };
        self.sum_down(&down, arrived, n_before == 0);
    }

    pub(in crate::backend::cpu) fn read_values(&self, values: &ShardValues, target: &mut Vec<f32>) {
        let (source, row_len, cols) = match values {
            ShardValues::Inner(cols) => {
                let chunk = &self.experts.chunk;
                (&chunk.inner[..], chunk.n_inner, cols.clone())
            }
            ShardValues::Sum(heads) => {
                let n_rows = self.routes.experts.len() / self.routes.top_k;
                let buffer = self.buffers.get(heads.buffer);
                (&buffer.values[..n_rows * buffer.n_cols], buffer.n_cols, heads.cols(0))
            }
        };
        for row in source.chunks_exact(row_len) {
            target.extend_from_slice(&row[cols.clone()]);
        }
    }

    pub(in crate::backend::cpu) fn write_values(&mut self, values: &ShardValues, source: &[f32]) {
        let (target, row_len, cols) = match values {
            ShardValues::Inner(cols) => {
                let chunk = &mut self.experts.chunk;
                (&mut chunk.inner[..], chunk.n_inner, cols.clone())
            }
            ShardValues::Sum(heads) => {
                let n_rows = self.routes.experts.len() / self.routes.top_k;
                let buffer = self.buffers.get_mut(heads.buffer);
                let n_cols = buffer.n_cols;
                (&mut buffer.values[..n_rows * n_cols], n_cols, heads.cols(0))
            }
        };
        let rows = target.chunks_exact_mut(row_len);
        assert_eq!(source.len(), rows.len() * cols.len(), "a value for each place");
        for (row, source) in rows.zip(source.chunks_exact(cols.len())) {
            row[cols.clone()].copy_from_slice(source);
        }
    }
}
