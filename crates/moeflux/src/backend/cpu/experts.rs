//! Routed experts: those that have arrived, over the rows that chose them; and their sum.
//!
//! All experts of one call are computed together in two products: gate and up, then down.
//! **Invariant:** an expert's output for a row depends on that row alone; the sum is taken in
//! ascending expert index, whatever the order of arrival.

use std::ops::Range;

use moeflux_kernels::{ROWS_PER_BLOCK, RowOp, Rows};

use crate::backend::ArrivedExpert;
use crate::backend::cpu::elementwise::COLS_PER_PART;
use crate::backend::cpu::linear::copy_row;
use crate::backend::cpu::product::{ReadyRows, n_blocks};
use crate::backend::cpu::split::{Items, Parts};
use crate::backend::cpu::{Common, Machine, Source, grown};
use crate::ops::{Combine, ExpertFfn, Op, Plan};

/// Scratch of the expert step; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct ExpertScratch {
    groups: Vec<Group>,
    /// Row of the step and rank of each use, expert by expert.
    uses: Vec<(usize, usize)>,
    /// Rows of the uses.
    rows: Vec<usize>,
    /// 0, 1, 2, ..
    identity: Vec<usize>,
    /// Inputs of gate.
    gate_x: ReadyRows,
    /// Inputs of up, where it is quantised otherwise than gate.
    up_x: ReadyRows,
    /// Inputs of down: one row per use.
    down_x: ReadyRows,
    /// Per expert `[block of inner, use, value of the block]`.
    inner: Vec<f32>,
    /// Per expert `[block of hidden, use, value of the block]`.
    outputs: Vec<f32>,
    /// Per row and rank: which use it is, if its expert has arrived.
    uses_of_ranks: Vec<Option<usize>>,
    /// The rows and ranks whose expert has arrived, as an index into `sources`, ascending.
    arrived_ranks: Vec<usize>,
}

/// One arrived expert's uses.
#[derive(Clone, Debug)]
struct Group {
    /// Index into the arrived experts.
    arrived_idx: usize,
    /// Range of `uses`.
    uses: Range<usize>,
}

impl Machine {
    pub(super) fn submit_experts(&mut self, plan: &Plan, arrived: &[ArrivedExpert<'_>]) {
        for op in &plan.ops {
            let Op::ExpertFfn(op) = op else {
                unreachable!("an expert plan has only experts: {}", op.name())
            };
            self.expert_ffn(op, arrived);
        }
    }

    fn expert_ffn(&mut self, op: &ExpertFfn, arrived: &[ArrivedExpert<'_>]) {
        self.gather_uses(arrived);
        let Some(first) = self.experts.groups.first() else { return };
        let view = arrived[first.arrived_idx].view;
        let n_rows = self.routes.experts.len() / self.routes.top_k;
        let Self { common, buffers, experts, .. } = self;

        let source = |row_idx, fill: &mut dyn FnMut(&[f32])| {
            fill(buffers.head(&op.x, row_idx, 0));
        };
        experts.gate_x.prepare(common, view.gate.layout(), n_rows, &source);
        let up_layout = view.up.layout();
        let is_shared = experts.gate_x.suit(up_layout);
        if !is_shared {
            experts.up_x.prepare(common, up_layout, n_rows, &source);
        }
        let n_uses = experts.uses.len();
        let up_x = if is_shared { &experts.gate_x } else { &experts.up_x };
        let inner_layout = ExpertRows { groups: &experts.groups, n_rows: up_layout.n_rows };
        let inner = grown(&mut experts.inner, inner_layout.n_values(), 0.0);
        let (gate_x, rows) = (&experts.gate_x, &experts.rows);
        inner_layout.each(common, inner, &|group, range, out| {
            let view = &arrived[group.arrived_idx].view;
            let picks = &rows[group.uses.clone()];
            gate_x.multiply(common.table, (view.gate, range.clone()), picks, out);
            let mut worker = common.worker();
            let up = grown(&mut worker.values, out.len(), 0.0);
            up_x.multiply(common.table, (view.up, range), picks, up);
            common.table.apply(&RowOp::SwiGlu { up, limit: op.limit }, out);
        });

        let down_layout = view.down.layout();
        experts.down_x.prepare(common, down_layout, n_uses, &|use_idx, fill| {
            let mut worker = common.worker();
            let values = grown(&mut worker.values, down_layout.n_cols, 0.0);
            inner_layout.copy_use(inner, use_idx, values);
            fill(values);
        });
        let hidden_layout = ExpertRows { groups: &experts.groups, n_rows: down_layout.n_rows };
        let outputs = grown(&mut experts.outputs, hidden_layout.n_values(), 0.0);
        let (down_x, identity) = (&experts.down_x, &experts.identity);
        hidden_layout.each(common, outputs, &|group, range, out| {
            let matrix = arrived[group.arrived_idx].view.down;
            down_x.multiply(common.table, (matrix, range), &identity[group.uses.clone()], out);
        });
        self.put_partials(op, down_layout.n_rows);
    }

    /// Notes who uses the arrived experts.
    fn gather_uses(&mut self, arrived: &[ArrivedExpert<'_>]) {
        let ExpertScratch { groups, uses, rows, identity, .. } = &mut self.experts;
        groups.clear();
        uses.clear();
        for (arrived_idx, expert) in arrived.iter().enumerate() {
            let first = uses.len();
            uses.extend(self.routes.uses_of(expert.expert));
            if uses.len() > first {
                groups.push(Group { arrived_idx, uses: first..uses.len() });
            }
        }
        rows.clear();
        rows.extend(uses.iter().map(|&(row_idx, _)| row_idx));
        identity.extend(identity.len()..uses.len());
    }

    /// Copies outputs to their rows and ranks.
    fn put_partials(&mut self, op: &ExpertFfn, n_hidden: usize) {
        let Self { common, buffers, routes, experts, .. } = self;
        let ExpertScratch { groups, uses, outputs, uses_of_ranks, arrived_ranks, .. } = experts;
        let top_k = routes.top_k;
        uses_of_ranks.clear();
        uses_of_ranks.resize(routes.experts.len(), None);
        for (use_idx, (row_idx, rank)) in uses.iter().enumerate() {
            uses_of_ranks[row_idx * top_k + rank] = Some(use_idx);
        }
        let has_arrived = |&at: &usize| uses_of_ranks[at].is_some();
        arrived_ranks.clear();
        arrived_ranks.extend((0..uses_of_ranks.len()).filter(has_arrived));

        let out = buffers.get_mut(op.partials.buffer);
        let (n_cols, first_col, n_items) = (out.n_cols, op.partials.first_col, arrived_ranks.len());
        let place = |item: usize| match arrived_ranks.get(item) {
            Some(at) => at / top_k * n_cols + first_col + at % top_k * n_hidden,
            None => uses_of_ranks.len() / top_k * n_cols,
        };
        let layout = ExpertRows { groups, n_rows: n_hidden };
        let items = Items { n_items, align: 1, cost: n_hidden, place };
        common.split.ranges(&mut out.values, &items, &|range, out| {
            let base = place(range.start);
            for item in range {
                let Some(use_idx) = uses_of_ranks[arrived_ranks[item]] else { continue };
                layout.copy_use(outputs, use_idx, &mut out[place(item) - base..][..n_hidden]);
            }
        });
    }

    pub(super) fn combine(&mut self, op: &Combine, n_rows: usize) {
        let reads = [Some(op.partials), op.shared, op.shared_gate];
        let mut out = self.take_in_place((&op.residual, &op.out), &reads, n_rows);
        let inputs = self.inputs(op.out.buffer);
        let residual = Source::new(inputs, &op.residual, &op.out);
        let (table, routes) = (self.common.table, &self.routes);
        let (n_hidden, top_k) = (op.out.head_dim, routes.top_k);
        let parts = Parts::columns(&op.out, COLS_PER_PART).with_cost(COLS_PER_PART * (top_k + 2));
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let (first_col, row_len) = (part_idx * COLS_PER_PART, out.len());
            residual.bring((row_idx, 0, first_col), out);
            let shared = op.shared.map(|shared| {
                let mut gate = [1.0];
                if let Some(shared_gate) = &op.shared_gate {
                    gate.copy_from_slice(&inputs.head(shared_gate, row_idx, 0)[..1]);
                    table.apply(&RowOp::Sigmoid, &mut gate);
                }
                (gate[0], &inputs.head(&shared, row_idx, 0)[first_col..][..row_len])
            });
            let values = &inputs.head(&op.partials, row_idx, 0)[first_col..];
            let combine = RowOp::Combine {
                weights: &routes.weights[row_idx * top_k..][..top_k],
                partials: Rows { values, n_rows: top_k, row_len, stride: n_hidden },
                shared,
            };
            table.apply(&combine, out);
        });
        self.buffers.put(op.out.buffer, out);
    }
}

/// Rows of every arrived expert's matrix, whose outputs lie expert by expert as
/// `[block of rows, use, row of the block]`.
#[derive(Clone, Copy)]
struct ExpertRows<'a> {
    groups: &'a [Group],
    n_rows: usize,
}

impl ExpertRows<'_> {
    fn n_values(&self) -> usize {
        let n_uses = self.groups.last().map_or(0, |group| group.uses.end);
        n_uses * n_blocks(self.n_rows) * ROWS_PER_BLOCK
    }

    /// Calls `f(expert, rows of its matrix, outputs)` over all rows of every expert.
    fn each(
        &self,
        common: &Common,
        out: &mut [f32],
        f: &(impl Fn(&Group, Range<usize>, &mut [f32]) + Sync),
    ) {
        let (groups, n_blocks) = (self.groups, n_blocks(self.n_rows));
        let place = |item: usize| match groups.get(item / n_blocks) {
            Some(Group { uses, .. }) => {
                (uses.start * n_blocks + item % n_blocks * uses.len()) * ROWS_PER_BLOCK
            }
            None => self.n_values(),
        };
        let n_items = groups.len() * n_blocks;
        // Cut finely: experts differ in uses.
        let items = Items { n_items, align: 1, cost: 512 * ROWS_PER_BLOCK, place };
        common.split.ranges(out, &items, &|range, mut out| {
            let mut item = range.start;
            while item < range.end {
                let group = &groups[item / n_blocks];
                let first = item % n_blocks;
                let blocks = first..n_blocks.min(first + range.end - item);
                item += blocks.len();
                let n_values = blocks.len() * group.uses.len() * ROWS_PER_BLOCK;
                let (head, tail) = out.split_at_mut(n_values);
                let end = self.n_rows.min(blocks.end * ROWS_PER_BLOCK);
                f(group, blocks.start * ROWS_PER_BLOCK..end, head);
                out = tail;
            }
        });
    }

    /// The outputs of one use, row by row.
    fn copy_use(&self, values: &[f32], use_idx: usize, out: &mut [f32]) {
        let group = &self.groups[self.groups.partition_point(|it| it.uses.end <= use_idx)];
        let first = group.uses.start * n_blocks(self.n_rows) * ROWS_PER_BLOCK;
        copy_row(&values[first..], (use_idx - group.uses.start, group.uses.len()), out);
    }
}
