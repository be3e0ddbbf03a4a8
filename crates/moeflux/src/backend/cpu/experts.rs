//! Routed experts: those that have arrived, over the rows that chose them; and their sum.
//!
//! All experts of one call are computed together in two products: gate and up, then down.
//! **Invariant:** an expert's output for a row depends on that row alone; the sum is taken in
//! ascending expert index, whatever the order of arrival.

use std::ops::Range;

use moeflux_kernels::{Activations, Matrix, Product, RowOp, Rows};

use crate::backend::ArrivedExpert;
use crate::backend::cpu::elementwise::{COLS_PER_PART, swiglu};
use crate::backend::cpu::linear::{MATRIX_ROWS_ALIGN, prepare};
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
    gate_x: Activations,
    /// Inputs of up, where it is quantised otherwise than gate.
    up_x: Activations,
    /// Inputs of down: one row per use.
    down_x: Activations,
    /// Per expert `[inner, uses]`.
    inner: Vec<f32>,
    /// Per expert `[hidden, uses]`.
    outputs: Vec<f32>,
    /// Per row and rank: where in `outputs` its values lie, if its expert has arrived.
    sources: Vec<Option<Source>>,
    /// The rows and ranks whose expert has arrived, as an index into `sources`, ascending.
    arrived_ranks: Vec<usize>,
}

/// Values at equal distances.
#[derive(Clone, Copy, Debug)]
struct Source {
    first: usize,
    stride: usize,
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

        let source = |row_idx| buffers.head(&op.x, row_idx, 0);
        prepare(common, &mut experts.gate_x, &view.gate, n_rows, &source);
        let up_layout = view.up.layout();
        let is_shared = experts.gate_x.suits(up_layout.kind, up_layout.n_cols);
        if !is_shared {
            prepare(common, &mut experts.up_x, &view.up, n_rows, &source);
        }
        let n_uses = experts.uses.len();
        let n_inner = view.gate.layout().n_rows;
        let up_x = if is_shared { &experts.gate_x } else { &experts.up_x };
        let inner = grown(&mut experts.inner, n_inner * n_uses, 0.0);
        let gate_up = GateUp { gate_x: &experts.gate_x, up_x, limit: op.limit };
        let rows = &experts.rows;
        each_expert(common, &experts.groups, (n_inner, inner), &|group, range, out| {
            let view = &arrived[group.arrived_idx].view;
            gate_up.run(common, (&view.gate, &view.up), &rows[group.uses.clone()], (range, out));
        });

        transpose(common, &mut experts.down_x, &view.down, (&experts.groups, inner));
        let n_hidden = view.down.layout().n_rows;
        let outputs = grown(&mut experts.outputs, n_hidden * n_uses, 0.0);
        let (down_x, identity) = (&experts.down_x, &experts.identity);
        each_expert(common, &experts.groups, (n_hidden, &mut *outputs), &|group, range, out| {
            let matrix = arrived[group.arrived_idx].view.down;
            let picks = &identity[group.uses.clone()];
            common.table.matmul(&Product { matrix, rows: range, x: down_x, picks }, out);
        });
        self.put_partials(op, n_hidden);
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
        let ExpertScratch { groups, uses, outputs, sources, arrived_ranks, .. } = experts;
        let top_k = routes.top_k;
        sources.clear();
        sources.resize(routes.experts.len(), None);
        for group in groups {
            let first = group.uses.start * n_hidden;
            for (i, &(row_idx, rank)) in uses[group.uses.clone()].iter().enumerate() {
                let source = Source { first: first + i, stride: group.uses.len() };
                sources[row_idx * top_k + rank] = Some(source);
            }
        }
        let has_arrived = |&at: &usize| sources[at].is_some();
        arrived_ranks.clear();
        arrived_ranks.extend((0..sources.len()).filter(has_arrived));

        let out = buffers.get_mut(op.partials.buffer);
        let (n_cols, first_col, n_items) = (out.n_cols, op.partials.first_col, arrived_ranks.len());
        let place = |item: usize| match arrived_ranks.get(item) {
            Some(at) => at / top_k * n_cols + first_col + at % top_k * n_hidden,
            None => sources.len() / top_k * n_cols,
        };
        let items = Items { n_items, align: 1, cost: n_hidden, place };
        common.split.ranges(&mut out.values, &items, &|range, out| {
            let base = place(range.start);
            for item in range {
                let Some(source) = sources[arrived_ranks[item]] else { continue };
                let values = outputs[source.first..].iter().step_by(source.stride);
                let out = &mut out[place(item) - base..][..n_hidden];
                out.iter_mut().zip(values).for_each(|(out, &value)| *out = value);
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

/// The first product of an expert.
struct GateUp<'a> {
    gate_x: &'a Activations,
    up_x: &'a Activations,
    limit: Option<f32>,
}

impl GateUp<'_> {
    /// `swiglu(gate . x, up . x)` for a range of inner rows.
    fn run(
        &self,
        common: &Common,
        (gate, up): (&Matrix<'_>, &Matrix<'_>),
        picks: &[usize],
        (rows, out): (Range<usize>, &mut [f32]),
    ) {
        let gates = Product { matrix: *gate, rows: rows.clone(), x: self.gate_x, picks };
        common.table.matmul(&gates, out);
        let mut worker = common.worker();
        let ups = grown(&mut worker.values, out.len(), 0.0);
        common.table.matmul(&Product { matrix: *up, rows, x: self.up_x, picks }, ups);
        for (out, &up) in out.iter_mut().zip(&*ups) {
            *out = swiglu(*out, up, self.limit);
        }
    }
}

/// Calls `f(expert, rows of its matrix, outputs)` over `n_rows` rows of every expert, whose outputs
/// lie expert by expert as `[row, use]`.
fn each_expert(
    common: &Common,
    groups: &[Group],
    (n_rows, out): (usize, &mut [f32]),
    f: &(impl Fn(&Group, Range<usize>, &mut [f32]) + Sync),
) {
    let place = |item: usize| match groups.get(item / n_rows) {
        Some(group) => group.uses.start * n_rows + item % n_rows * group.uses.len(),
        None => groups.last().map_or(0, |group| group.uses.end * n_rows),
    };
    let n_items = groups.len() * n_rows;
    // Rows are cut finely: experts differ in uses.
    let items = Items { n_items, align: MATRIX_ROWS_ALIGN, cost: 512, place };
    common.split.ranges(out, &items, &|range, mut out| {
        let mut item = range.start;
        while item < range.end {
            let group = &groups[item / n_rows];
            let first_row = item % n_rows;
            let rows = first_row..n_rows.min(first_row + range.end - item);
            let n_values = rows.len() * group.uses.len();
            item += rows.len();
            let (head, tail) = out.split_at_mut(n_values);
            f(group, rows, head);
            out = tail;
        }
    });
}

/// Makes `inner`, per expert `[inner, uses]`, into rows of activations, one per use.
fn transpose(
    common: &Common,
    target: &mut Activations,
    matrix: &Matrix<'_>,
    (groups, inner): (&[Group], &[f32]),
) {
    let layout = matrix.layout();
    let n_uses = groups.last().map_or(0, |group| group.uses.end);
    target.reshape(layout.kind, n_uses, layout.n_cols);
    let (shape, values, sums) = target.rows_mut();
    common.split.pairs((values, sums), n_uses, shape.stride, &|use_idx, row, sums| {
        let group = &groups[groups.partition_point(|group| group.uses.end <= use_idx)];
        let inner = &inner[group.uses.start * layout.n_cols..];
        let columns = inner.chunks_exact(group.uses.len());
        for (value, column) in row.iter_mut().zip(columns.take(layout.n_cols)) {
            *value = column[use_idx - group.uses.start];
        }
        shape.finish(common.table, row, sums);
    });
}
