//! Routed experts: computes the arrived experts over the rows that chose them, and their sum.
//!
//! All experts of one call are computed together in two products: gate and up, then down.
//! **Invariant:** an expert's output for a row depends on that row alone; the sum is taken in
//! ascending expert index, regardless of the order of arrival.

mod chunk;
mod sharded;

use std::ops::Range;

use moeflux_kernels::{KernelTable, ROWS_PER_BLOCK, RepackedRows, RowOp, StridedRows};
use moeflux_threads::Columns;

use crate::backend::cpu::elementwise::COLS_PER_PART;
use crate::backend::cpu::experts::chunk::ExpertChunk;
use crate::backend::cpu::linear::{BLOCKS_AT_ONCE, copy_row};
use crate::backend::cpu::product::{PreparedRows, REPACK_COST, n_blocks};
use crate::backend::cpu::split::{RowParts, SplitItems};
use crate::backend::cpu::{Common, InPlaceSource, PlanExecutor, Worker, grown};
use crate::experts::{ArrivalOrder, Arrived};
use crate::ids::{ExpertIdx, VectorId};
use crate::ops::{Combine, ExpertBiases, ExpertFfn, Heads, Op, Plan, Routes};

/// Blocks of outputs added to the sums at a time if an expert has few uses.
const OUTPUT_BLOCKS_AT_ONCE: usize = 256;

/// Scratch of the expert step; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct ExpertScratch {
    pub groups: Vec<ExpertUses>,
    /// Row of the step and rank of each use, expert by expert.
    pub uses: Vec<(usize, usize)>,
    /// Row of each use.
    rows: Vec<usize>,
    /// 0, 1, 2, ..
    identity: Vec<usize>,
    /// Inputs of down: one row per use.
    pub down_x: PreparedRows,
    /// The inputs of down, expert by expert, in the layout of the kernels.
    down_repacked: Vec<RepackedRows>,
    /// Per expert `[block of inner, use, value of the block]`.
    pub inner: Vec<f32>,
    /// Per expert `[block of hidden, use, value of the block]`.
    outputs: Vec<f32>,
    /// For each row and rank, the index of the use, if its expert has arrived.
    uses_of_ranks: Vec<Option<usize>>,
    /// `[row, rank, hidden]`: outputs that are not summed yet.
    partials: Vec<f32>,
    /// Number of uses whose outputs are already in the sum.
    pub n_summed: usize,
    /// The rows and ranks whose experts have arrived, as indices into `uses_of_ranks`, ascending.
    arrived_ranks: Vec<usize>,
    /// The current chunk of experts that are sharded over machines.
    pub chunk: ExpertChunk,
}

impl ExpertScratch {
    /// Resets the sum for a new route.
    pub(super) fn begin(&mut self) {
        self.n_summed = 0;
    }
}

impl ExpertScratch {
    /// Prepares the inputs of down, expert by expert: all threads use all of them.
    fn repack_down_inputs(&mut self, common: &Common) {
        let Self { groups, identity, down_x, down_repacked, .. } = self;
        if down_repacked.len() < groups.len() {
            down_repacked.resize_with(groups.len(), RepackedRows::default);
        }
        let n_uses = groups.last().map_or(0, |group| group.uses.end);
        let cost = n_uses.div_ceil(groups.len().max(1)) * REPACK_COST;
        let items = SplitItems { n_items: groups.len(), align: 1, cost, offset: |i| i };
        common.split.ranges(down_repacked, &items, &|range, repacked| {
            for (group, repacked) in groups[range].iter().zip(repacked) {
                down_x.repack(common.table, &identity[group.uses.clone()], repacked);
            }
        });
    }
}

/// The product with gate and up: the rows to compute.
pub(super) struct UpProduct<'a> {
    pub x: &'a Heads,
    /// Index of the first row within a whole expert.
    pub first_row: usize,
    /// Rows of a whole expert.
    pub n_bias_rows: usize,
    pub limit: Option<f32>,
    pub biases: Option<ExpertBiases>,
}

/// The product with down: the rows to compute.
pub(super) struct DownProduct<'a> {
    /// The columns that the outputs are added to.
    pub sum: &'a Heads,
    /// Index of the first row within a whole expert.
    pub first_row: usize,
    /// Rows of a whole expert.
    pub n_bias_rows: usize,
    pub bias: Option<VectorId>,
}

/// The uses of one arrived expert.
#[derive(Clone, Debug)]
pub(super) struct ExpertUses {
    /// Index into the arrived experts.
    pub arrived_idx: usize,
    /// Range of `uses`.
    pub uses: Range<usize>,
}

impl PlanExecutor {
    pub(super) fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) {
        for op in plan.ops() {
            match op {
                Op::ExpertFfn(op) => self.expert_ffn(op, arrived),
                Op::ExpertUp(op) => self.expert_up(op, arrived),
                Op::ExpertDown(op) => self.expert_down(op, arrived),
                other => unreachable!("an expert plan has only experts: {}", other.name()),
            }
        }
    }

    fn expert_ffn(&mut self, op: &ExpertFfn, arrived: &Arrived<'_>) {
        self.gather_uses(arrived);
        let Some(first) = self.experts.groups.first() else { return };
        let view = arrived.view(first.arrived_idx);
        let (up_layout, down_layout) = (view.up.layout(), view.down.layout());
        let up = UpProduct {
            x: &op.x,
            first_row: 0,
            n_bias_rows: up_layout.n_rows,
            limit: op.limit,
            biases: op.biases,
        };
        self.multiply_up(&up, arrived);
        let Self { common, experts, routes, .. } = self;
        let ExpertScratch { groups, uses, inner, down_x, .. } = experts;
        let inner_layout = ExpertRows { groups, n_rows: up_layout.n_rows };
        let n_uses = uses.len();
        down_x.prepare(common, down_layout, n_uses, &|use_idx, fill| {
            let mut worker = common.worker();
            let values = grown(&mut worker.values, down_layout.n_cols, 0.0);
            inner_layout.copy_use(inner, use_idx, values);
            fill(values);
        });
        let is_whole = n_uses == routes.experts.len();
        if is_whole || arrived.order() == ArrivalOrder::Ascending {
            let n_before = if is_whole { 0 } else { experts.n_summed };
            experts.n_summed = n_before + n_uses;
            let down = DownProduct {
                sum: &op.sum,
                first_row: 0,
                n_bias_rows: op.sum.head_dim,
                bias: op.biases.map(|biases| biases.down),
            };
            self.sum_down(&down, arrived, n_before == 0);
        } else {
            experts.n_summed = 0;
            self.keep_partials(op, arrived);
        }
    }

    /// Computes `swiglu(gate . x, up . x)` of all uses of the arrived experts into `inner`.
    pub(super) fn multiply_up(&mut self, op: &UpProduct<'_>, arrived: &Arrived<'_>) {
        let n_rows = self.routes.experts.len() / self.routes.top_k;
        let Self { common, buffers, experts, prepared, .. } = self;
        let ExpertScratch { groups, rows, inner, .. } = experts;
        let Some(first) = groups.first() else { return };
        let view = arrived.view(first.arrived_idx);
        let up_layout = view.up.layout();
        let inner_layout = ExpertRows { groups, n_rows: up_layout.n_rows };
        let inner = grown(inner, inner_layout.n_values(), 0.0);
        let layouts = [view.gate.layout(), up_layout];
        let [gate_x, up_x] = prepared.of_both(common, (buffers, op.x), layouts, n_rows);
        let is_shared = std::ptr::eq(gate_x, up_x);
        inner_layout.each(common, inner, &|group, range, out| {
            let view = arrived.view(group.arrived_idx);
            let picks = &rows[group.uses.clone()];
            let mut worker = common.worker();
            let Worker { values, repacked, product, .. } = &mut *worker;
            let up = grown(values, out.len(), 0.0);
            let expert = arrived.expert(group.arrived_idx);
            let bias_rows = op.first_row + range.start..op.first_row + range.end;
            let bias_rows = (op.n_bias_rows, bias_rows);
            let x = gate_x.picked(common.table, picks, repacked);
            x.multiply((common.table, product), (view.gate, range.clone()), out);
            if is_shared {
                x.multiply((common.table, product), (view.up, range), up);
            } else {
                let x = up_x.picked(common.table, picks, repacked);
                x.multiply((common.table, product), (view.up, range), up);
            }
            let biases = op.biases.map(|biases| (biases.gate, biases.up)).unzip();
            common.add_bias((biases.0, expert), bias_rows.clone(), picks.len(), out);
            common.add_bias((biases.1, expert), bias_rows, picks.len(), up);
            common.table.apply(&RowOp::SwiGlu { up, limit: op.limit }, out);
        });
    }

    /// Sums the outputs of down. Experts arrive in the order of the sum, so each thread adds up its
    /// own columns, expert by expert.
    pub(super) fn sum_down(&mut self, op: &DownProduct<'_>, arrived: &Arrived<'_>, is_first: bool) {
        let Self { common, buffers, routes, experts, .. } = self;
        experts.repack_down_inputs(common);
        let ExpertScratch { groups, uses, identity, down_x, down_repacked, .. } = experts;
        let out = buffers.get_mut(op.sum.buffer);
        let (row_len, first_col) = (out.n_cols, op.sum.first_col);
        let n_rows = routes.experts.len() / routes.top_k;
        let (n_hidden, bias) = (op.sum.head_dim, op.bias);
        let offset = |block_idx| first_col + n_hidden.min(block_idx * ROWS_PER_BLOCK);
        let cost = uses.len() * 512 * ROWS_PER_BLOCK;
        let items = SplitItems { n_items: n_blocks(n_hidden), align: 1, cost, offset };
        let values = &mut out.values[..n_rows * row_len];
        common.split.columns((values, row_len), &items, &|blocks, mut sums| {
            let Worker { product, values, .. } = &mut *common.worker();
            if is_first {
                (0..n_rows).for_each(|row_idx| sums.row_mut(row_idx).fill(0.0));
            }
            for (group, repacked) in groups.iter().zip(&*down_repacked) {
                let matrix = arrived.view(group.arrived_idx).down;
                let uses = &uses[group.uses.clone()];
                let x = down_x.repacked(&identity[group.uses.clone()], repacked);
                let n_at_once = BLOCKS_AT_ONCE.max(OUTPUT_BLOCKS_AT_ONCE / uses.len());
                for first in blocks.clone().step_by(n_at_once) {
                    let end = blocks.end.min(first + n_at_once);
                    let rows = first * ROWS_PER_BLOCK..n_hidden.min(end * ROWS_PER_BLOCK);
                    let n_values = (end - first) * ROWS_PER_BLOCK * uses.len();
                    let values = grown(values, n_values, 0.0);
                    x.multiply((common.table, &mut *product), (matrix, rows.clone()), values);
                    let expert = arrived.expert(group.arrived_idx);
                    let bias_rows = op.first_row + rows.start..op.first_row + rows.end;
                    let bias_rows = (op.n_bias_rows, bias_rows);
                    common.add_bias((bias, expert), bias_rows, uses.len(), values);
                    let start = rows.start - blocks.start * ROWS_PER_BLOCK;
                    let cols = start..start + rows.len();
                    add_uses(common.table, (routes, uses), values, (&mut sums, cols));
                }
            }
        });
    }

    /// Keeps the outputs of down for a later sum, because some experts are still to come.
    fn keep_partials(&mut self, op: &ExpertFfn, arrived: &Arrived<'_>) {
        let Self { common, experts, .. } = self;
        let (n_hidden, bias) = (op.sum.head_dim, op.biases.map(|biases| biases.down));
        let hidden_layout = ExpertRows { groups: &experts.groups, n_rows: n_hidden };
        let outputs = grown(&mut experts.outputs, hidden_layout.n_values(), 0.0);
        let (down_x, identity) = (&experts.down_x, &experts.identity);
        hidden_layout.each(common, outputs, &|group, range, out| {
            let matrix = arrived.view(group.arrived_idx).down;
            let Worker { repacked, product, .. } = &mut *common.worker();
            let x = down_x.picked(common.table, &identity[group.uses.clone()], repacked);
            x.multiply((common.table, product), (matrix, range.clone()), out);
            let expert = arrived.expert(group.arrived_idx);
            common.add_bias((bias, expert), (n_hidden, range), group.uses.len(), out);
        });
        self.put_partials(n_hidden);
    }

    /// Collects the uses of the arrived experts.
    pub(super) fn gather_uses(&mut self, arrived: &Arrived<'_>) {
        let ExpertScratch { groups, uses, rows, identity, .. } = &mut self.experts;
        groups.clear();
        groups.extend((0..arrived.len()).map(|arrived_idx| ExpertUses { arrived_idx, uses: 0..0 }));
        // Groups are in the order of the sum.
        groups.sort_unstable_by_key(|group| arrived.expert(group.arrived_idx));
        uses.clear();
        for group in &mut *groups {
            let first = uses.len();
            uses.extend(self.routes.uses_of(arrived.expert(group.arrived_idx)));
            group.uses = first..uses.len();
        }
        groups.retain(|group| !group.uses.is_empty());
        rows.clear();
        rows.extend(uses.iter().map(|&(row_idx, _)| row_idx));
        identity.extend(identity.len()..uses.len());
    }

    /// Copies outputs to their rows and ranks.
    fn put_partials(&mut self, n_hidden: usize) {
        let Self { common, routes, experts, .. } = self;
        let ExpertScratch { groups, uses, outputs, partials, uses_of_ranks, arrived_ranks, .. } =
            experts;
        let top_k = routes.top_k;
        uses_of_ranks.clear();
        uses_of_ranks.resize(routes.experts.len(), None);
        for (use_idx, (row_idx, rank)) in uses.iter().enumerate() {
            uses_of_ranks[row_idx * top_k + rank] = Some(use_idx);
        }
        let has_arrived = |&at: &usize| uses_of_ranks[at].is_some();
        arrived_ranks.clear();
        arrived_ranks.extend((0..uses_of_ranks.len()).filter(has_arrived));

        let n_items = arrived_ranks.len();
        let offset = |item: usize| {
            arrived_ranks.get(item).copied().unwrap_or(uses_of_ranks.len()) * n_hidden
        };
        let partials = grown(partials, uses_of_ranks.len() * n_hidden, 0.0);
        let layout = ExpertRows { groups, n_rows: n_hidden };
        let items = SplitItems { n_items, align: 1, cost: n_hidden, offset };
        common.split.ranges(partials, &items, &|range, out| {
            let base = offset(range.start);
            for item in range {
                let Some(use_idx) = uses_of_ranks[arrived_ranks[item]] else { continue };
                layout.copy_use(outputs, use_idx, &mut out[offset(item) - base..][..n_hidden]);
            }
        });
    }

    pub(super) fn combine(&mut self, op: &Combine, n_rows: usize) {
        let reads = [Some(op.sum), op.shared, op.shared_gate];
        let base = op.residual.unwrap_or(op.out);
        let mut out = self.take_in_place((&base, &op.out), &reads, n_rows);
        let inputs = self.inputs(op.out.buffer);
        let residual = InPlaceSource::new(inputs, &base, &op.out);
        let (table, routes) = (self.common.table, &self.routes);
        let ExpertScratch { partials, n_summed, .. } = &self.experts;
        let are_summed = *n_summed == routes.experts.len();
        let (n_hidden, top_k) = (op.out.head_dim, routes.top_k);
        let parts =
            RowParts::columns(&op.out, COLS_PER_PART).with_cost(COLS_PER_PART * (top_k + 2));
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let (first_col, row_len) = (part_idx * COLS_PER_PART, out.len());
            match op.residual {
                Some(_) => residual.copy_into((row_idx, 0, first_col), out),
                None => out.fill(0.0),
            }
            let shared = op.shared.map(|shared| {
                let mut gate = [1.0];
                if let Some(shared_gate) = &op.shared_gate {
                    gate.copy_from_slice(&inputs.head(shared_gate, row_idx, 0)[..1]);
                    table.apply(&RowOp::Sigmoid, &mut gate);
                }
                (gate[0], &inputs.head(&shared, row_idx, 0)[first_col..][..row_len])
            });
            let sum = &inputs.head(&op.sum, row_idx, 0)[first_col..][..row_len];
            let (sum, values, n_partials) = if are_summed {
                (Some(sum), &[][..], 0)
            } else {
                (None, &partials[row_idx * top_k * n_hidden + first_col..], top_k)
            };
            let combine = RowOp::Combine {
                sum,
                weights: &routes.weights[row_idx * top_k..][..n_partials],
                partials: StridedRows { values, n_rows: n_partials, row_len, stride: n_hidden },
                shared,
            };
            table.apply(&combine, out);
        });
        self.buffers.put(op.out.buffer, out);
    }
}

impl Common {
    /// Adds an expert's bias, if any, to some rows of its outputs,
    /// `[block of rows][use][row of the block]`. The vector has `n_rows` values for each expert.
    fn add_bias(
        &self,
        (bias, expert): (Option<VectorId>, ExpertIdx),
        (n_rows, rows): (usize, Range<usize>),
        n_uses: usize,
        outputs: &mut [f32],
    ) {
        let Some(bias) = bias else { return };
        let bias = &self.weights.vector(bias)[expert.0 * n_rows..][rows];
        let blocks = outputs.chunks_exact_mut(n_uses * ROWS_PER_BLOCK);
        for (block, bias) in blocks.zip(bias.chunks(ROWS_PER_BLOCK)) {
            for values in block.chunks_exact_mut(ROWS_PER_BLOCK) {
                values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }
}

/// Adds one expert's outputs, `[block of columns][use][column of the block]`, to some columns of
/// the sums of the rows that use it.
fn add_uses(
    table: &KernelTable,
    (routes, uses): (&Routes, &[(usize, usize)]),
    outputs: &[f32],
    (sums, cols): (&mut Columns<'_, f32>, Range<usize>),
) {
    for (use_idx, &(row_idx, rank)) in uses.iter().enumerate() {
        let blocks = StridedRows {
            values: &outputs[use_idx * ROWS_PER_BLOCK..],
            n_rows: n_blocks(cols.len()),
            row_len: ROWS_PER_BLOCK,
            stride: uses.len() * ROWS_PER_BLOCK,
        };
        let weight = routes.weights[row_idx * routes.top_k + rank];
        let sums = &mut sums.row_mut(row_idx)[cols.clone()];
        table.apply(&RowOp::AddBlocks { weight, blocks }, sums);
    }
}

/// Rows of every arrived expert's matrix. Outputs are stored expert by expert as
/// `[block of rows, use, row of the block]`.
#[derive(Clone, Copy)]
pub(super) struct ExpertRows<'a> {
    pub groups: &'a [ExpertUses],
    pub n_rows: usize,
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
        f: &(impl Fn(&ExpertUses, Range<usize>, &mut [f32]) + Sync),
    ) {
        let (groups, n_blocks) = (self.groups, n_blocks(self.n_rows));
        let offset = |item: usize| match groups.get(item / n_blocks) {
            Some(ExpertUses { uses, .. }) => {
                (uses.start * n_blocks + item % n_blocks * uses.len()) * ROWS_PER_BLOCK
            }
            None => self.n_values(),
        };
        let n_items = groups.len() * n_blocks;
        // Tasks are small, because experts differ in uses.
        let items = SplitItems { n_items, align: 1, cost: 512 * ROWS_PER_BLOCK, offset };
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

    /// Copies the outputs of one use, in row order.
    pub(super) fn copy_use(&self, values: &[f32], use_idx: usize, out: &mut [f32]) {
        let group = &self.groups[self.groups.partition_point(|it| it.uses.end <= use_idx)];
        let first = group.uses.start * n_blocks(self.n_rows) * ROWS_PER_BLOCK;
        copy_row(&values[first..], (use_idx - group.uses.start, group.uses.len()), out);
    }
}
