//! The CPU backend: runs plans over host memory, with dequantising kernels and a thread pool.
//!
//! **Invariant:** each output value is computed whole by one thread, in the order that
//! `moeflux_kernels` and the ops state. Results thus do not depend on threads, on how rows are cut
//! into steps, or on which sessions share a step. Never waits for the disk.

mod router;
mod split;
mod attention;
mod selection;
mod elementwise;
mod streams;
mod delta;
mod product;
mod linear;
mod experts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux_kernels::{IntScratch, KernelTable, RepackedRows};
use moeflux_threads::Pool;

use crate::backend::best::best;
use crate::backend::cpu::attention::{AttentionScratch, TaskScratch};
use crate::backend::cpu::elementwise::RotationTable;
use crate::backend::cpu::experts::ExpertScratch;
use crate::backend::cpu::product::{PreparedInputs, PreparedRows};
use crate::backend::cpu::selection::{ChoiceScratch, SelectionScratch};
use crate::backend::cpu::split::WorkSplitter;
use crate::backend::host::{Buffer, Buffers, HostStates};
use crate::backend::session_budget::SessionBudget;
use crate::backend::{
    Arithmetic, Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, ShardValues,
    StatePart,
};
use crate::error::{Error, Result};
use crate::experts::Arrived;
use crate::ids::{BufferId, ExpertIdx, StateId, VectorId};
use crate::ops::{Batch, Heads, Op, Plan, Purpose, Routes, RowSet, StateSpec, Workspace};
use crate::weights::Weights;

/// See [`DeviceNames::bits_version`]. The first version of 8-bit keys did not spread them.
const fn bits_version(arithmetic: Arithmetic) -> u32 {
    match arithmetic {
        Arithmetic::F32 | Arithmetic::F16Staged | Arithmetic::Int8 => 1,
        Arithmetic::Int8Kv8 => 2,
    }
}

/// Upper bound on threads. A larger number is a mistake: no machine has that many cores.
const N_THREADS_MAX: usize = 4096;

/// Runs plans on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    executor: PlanExecutor,
}

impl CpuBackend {
    /// Creates a backend with a thread pool and with buffers for `n_rows_max` rows.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for zero threads or more than 4096; [`Error::Machine`] if the system fails
    /// to start them.
    pub fn new(
        weights: Arc<Weights>,
        workspace: &Workspace,
        n_rows_max: usize,
        n_threads: usize,
    ) -> Result<Self> {
        if !(1..=N_THREADS_MAX).contains(&n_threads) {
            return Err(Error::Input(format!(
                "{n_threads} threads requested; must be between 1 and {N_THREADS_MAX}"
            )));
        }
        let pool = Pool::new(n_threads).map_err(|error| {
            Error::Machine(format!("cannot start {n_threads} threads: {error}"))
        })?;
        let executor = PlanExecutor {
            common: Common {
                arithmetic: Arithmetic::F32,
                table: moeflux_kernels::best(),
                split: WorkSplitter::new(pool),
                weights,
                workers: (0..n_threads).map(|_| Mutex::default()).collect(),
            },
            n_rows_max,
            buffers: Buffers::new(workspace, n_rows_max),
            states: HostStates::default(),
            routes: Routes::default(),
            guessed: Routes::default(),
            prepared: PreparedInputs::default(),
            scratch: OpScratch::default(),
            experts: ExpertScratch::default(),
        };
        Ok(Self { executor })
    }

    /// Selects an arithmetic other than f32.
    #[must_use]
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.executor.common.arithmetic = arithmetic;
        self
    }

    /// Selects the kernels of an instruction set other than the fastest. Results do not change.
    #[must_use]
    pub fn with_kernels(mut self, table: &'static KernelTable) -> Self {
        self.executor.common.table = table;
        self
    }
}

/// Executes plans: buffers, states and threads of the backend.
#[derive(Debug)]
struct PlanExecutor {
    common: Common,
    n_rows_max: usize,
    buffers: Buffers,
    states: HostStates,
    routes: Routes,
    guessed: Routes,
    prepared: PreparedInputs,
    scratch: OpScratch,
    experts: ExpertScratch,
}

/// Parts shared by all threads while an op runs.
#[derive(Debug)]
struct Common {
    arithmetic: Arithmetic,
    table: &'static KernelTable,
    split: WorkSplitter,
    weights: Arc<Weights>,
    /// One per thread, locked only by that thread, so never contended.
    workers: Vec<Mutex<Worker>>,
}

/// Scratch of one thread; grows to the largest use and is kept.
#[derive(Debug, Default)]
struct Worker {
    prepared: PreparedRows,
    repacked: RepackedRows,
    product: IntScratch,
    values: Vec<f32>,
    indices: Vec<usize>,
    attention: TaskScratch,
    selection: SelectionScratch,
}

/// Scratch of one op; grows to the largest use and is kept.
#[derive(Debug, Default)]
struct OpScratch {
    /// A copy of the output buffer, for ops that read what they overwrite.
    snapshot: Buffer,
    /// 0, 1, 2, ..
    identity: Vec<usize>,
    values: Vec<f32>,
    /// Rotation tables of each rope's frequencies, for the rows of the current step.
    rotations: Vec<RotationTable>,
    /// `[n_taps, channels]`, keyed by the vector that holds them as `[channels, n_taps]`.
    taps: HashMap<VectorId, Vec<f32>>,
    attention: AttentionScratch,
    choice: ChoiceScratch,
}

impl Common {
    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.workers[self.split.thread_idx()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The buffers that an op reads while it writes one of them.
#[derive(Clone, Copy, Debug)]
struct Inputs<'a> {
    buffers: &'a Buffers,
    written: BufferId,
    snapshot: &'a Buffer,
}

impl<'a> Inputs<'a> {
    fn buffer(&self, id: BufferId) -> &'a Buffer {
        if id == self.written { self.snapshot } else { self.buffers.get(id) }
    }

    fn head(&self, heads: &Heads, row_idx: usize, head_idx: usize) -> &'a [f32] {
        &self.buffer(heads.buffer).row(row_idx)[heads.cols(head_idx)]
    }
}

/// The input of an op that may work in place.
#[derive(Clone, Copy, Debug)]
struct InPlaceSource<'a> {
    inputs: Inputs<'a>,
    /// `None` if the output already holds the values.
    x: Option<Heads>,
}

impl<'a> InPlaceSource<'a> {
    fn new(inputs: Inputs<'a>, x: &Heads, out: &Heads) -> Self {
        Self { inputs, x: (x != out).then_some(*x) }
    }

    /// Copies values of a head, starting at column `first_col`, unless they are there already.
    fn copy_into(&self, (row_idx, head_idx, first_col): (usize, usize, usize), out: &mut [f32]) {
        if let Some(x) = &self.x {
            let head = self.inputs.head(x, row_idx, head_idx);
            out.copy_from_slice(&head[first_col..][..out.len()]);
        }
    }
}

/// Grows `values` to at least `len`; contents are unspecified.
fn grown<T: Clone>(values: &mut Vec<T>, len: usize, filler: T) -> &mut [T] {
    if values.len() < len {
        values.resize(len, filler);
    }
    &mut values[..len]
}

impl PlanExecutor {
    /// Takes the buffer that an op writes. If `reads`, the op's inputs, include it, it is copied
    /// first.
    fn take_output(&mut self, out: BufferId, reads: &[Heads], n_rows: usize) -> Buffer {
        if reads.iter().any(|heads| heads.buffer == out) {
            let source = self.buffers.get(out);
            let snapshot = &mut self.scratch.snapshot;
            snapshot.n_cols = source.n_cols;
            snapshot.values.copy(&source.values[..n_rows * source.n_cols]);
        }
        self.buffers.take(out)
    }

    /// As [`PlanExecutor::take_output`], for ops that work in place if `x` is `out` itself: `x`
    /// then needs no copy. See [`InPlaceSource`].
    fn take_in_place(
        &mut self,
        (x, out): (&Heads, &Heads),
        others: &[Option<Heads>],
        n_rows: usize,
    ) -> Buffer {
        let is_read = |heads: &Heads| heads.buffer == out.buffer;
        let needs_copy = x != out && is_read(x) || others.iter().flatten().any(is_read);
        let reads: &[Heads] = if needs_copy { &[*out] } else { &[] };
        self.take_output(out.buffer, reads, n_rows)
    }

    fn inputs(&self, written: BufferId) -> Inputs<'_> {
        Inputs { buffers: &self.buffers, written, snapshot: &self.scratch.snapshot }
    }

    /// Resizes the workspace and drops scratch, which is as large as its largest use.
    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        self.prepared = PreparedInputs::default();
        self.scratch = OpScratch::default();
        self.experts = ExpertScratch::default();
        for worker in &mut self.common.workers {
            *worker.get_mut().unwrap_or_else(PoisonError::into_inner) = Worker::default();
        }
        self.buffers.set_rows_max(n_rows_max)?;
        self.n_rows_max = n_rows_max;
        Ok(())
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) {
        assert!(batch.rows.len() <= self.n_rows_max, "{} rows in a step", batch.rows.len());
        let n_rows = match plan.rows() {
            RowSet::All => batch.rows.len(),
            RowSet::Outputs => batch.outputs.len(),
        };
        if n_rows == 0 {
            return;
        }
        for op in plan.ops() {
            self.run(op, batch, n_rows);
        }
    }

    fn run(&mut self, op: &Op, batch: &Batch<'_>, n_rows: usize) {
        match op {
            Op::Embed(op) => self.embed(op, batch),
            Op::SelectRows(op) => self.select_rows(op, batch),
            Op::RmsNorm(op) => self.rms_norm(op, n_rows),
            Op::LayerNorm(op) => self.layer_norm(op, n_rows),
            Op::L2Norm(op) => self.l2_norm(op, n_rows),
            Op::MatMul(op) => self.matmul(op, n_rows),
            Op::HeadMatMul(op) => self.head_matmul(op, n_rows),
            Op::Rope(op) => self.rope(op, batch),
            Op::Attention(op) => self.attention(op, batch),
            Op::PoolKeys(op) => self.pool_keys(op, batch),
            Op::SelectPositions(op) => self.select_positions(op, batch),
            Op::MlaAttention(op) => self.mla_attention(op, batch),
            Op::CausalConv(op) => self.causal_conv(op, batch),
            Op::DeltaGates(op) => self.delta_gates(op, n_rows),
            Op::GatedDelta(op) => self.gated_delta(op, batch),
            Op::SwiGlu(op) => self.swiglu(op, n_rows),
            Op::Add(op) => self.add(op, n_rows),
            Op::Activate(op) => self.activate(op, n_rows),
            Op::HeadDot(op) => self.head_dot(op, n_rows),
            Op::StreamRead(op) => self.stream_read(op, n_rows),
            Op::StreamWrite(op) => self.stream_write(op, n_rows),
            Op::Route(op) => self.route(op, n_rows),
            Op::Combine(op) => self.combine(op, n_rows),
            Op::TopK(op) => best(op, &mut self.buffers, n_rows),
            Op::ExpertFfn(_) | Op::ExpertUp(_) | Op::ExpertDown(_) => {
                unreachable!("experts are submitted with their weights")
            }
        }
    }
}

impl Backend for CpuBackend {
    fn names(&self) -> DeviceNames {
        let Common { arithmetic, table, .. } = self.executor.common;
        let bits_version = bits_version(arithmetic);
        DeviceNames { backend: "cpu", arithmetic, isa: table.name(), bits_version, device_hash: 0 }
    }

    fn n_rows_max(&self) -> usize {
        self.executor.n_rows_max
    }

    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        self.executor.set_rows_max(n_rows_max)
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        self.executor.submit(plan, batch);
        Ok(())
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        Ok(match purpose {
            Purpose::Compute => &self.executor.routes,
            Purpose::Prefetch => &self.executor.guessed,
        })
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        self.executor.submit_experts(plan, arrived);
        Ok(())
    }

    fn swap_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()> {
        self.executor.buffers.swap_rows(buffer, n_rows);
        Ok(())
    }

    fn write_rows(&mut self, buffer: BufferId, values: &[f32]) -> Result<()> {
        self.executor.buffers.get_mut(buffer).values[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()> {
        let row = self.executor.buffers.get(buffer).row(row_idx);
        target.copy_from_slice(&row[..target.len()]);
        Ok(())
    }

    fn reads_stall(&self) -> bool {
        false
    }

    fn states(&self) -> &dyn SessionStates {
        self
    }

    fn states_mut(&mut self) -> &mut dyn SessionStates {
        self
    }

    fn sharding(&mut self) -> Option<&mut dyn ExpertSharding> {
        Some(self)
    }

    fn tiers(&self) -> Option<&dyn ExpertTiers> {
        None
    }

    fn tiers_mut(&mut self) -> Option<&mut dyn ExpertTiers> {
        None
    }
}

impl SessionStates for CpuBackend {
    fn budget(&self) -> &Arc<SessionBudget> {
        self.executor.states.budget()
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        let kind = self.executor.common.arithmetic.kv_kind();
        self.executor.states.create(spec, kind, context)
    }

    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()> {
        self.executor.states.reserve(state, positions)
    }

    fn fork_state(&mut self, state: StateId) -> Result<StateId> {
        self.executor.states.fork(state)
    }

    fn drop_state(&mut self, state: StateId) {
        self.executor.states.remove(state);
    }

    fn reset_state(&mut self, state: StateId) {
        self.executor.states.reset(state);
    }

    fn commit_state(&mut self, state: StateId) {
        self.executor.states.commit(state);
    }

    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()> {
        self.executor.states.set_marks(state, n_marks)
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        self.executor.states.part_bytes(state, part)
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        self.executor.states.read(state, part, target);
        Ok(())
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        self.executor.states.write(state, part, source);
        Ok(())
    }
}

impl ExpertSharding for CpuBackend {
    fn begin_chunk(&mut self, experts: &[ExpertIdx], n_inner: usize) -> Result<usize> {
        Ok(self.executor.begin_chunk(experts, n_inner))
    }

    fn read_values(&mut self, values: &ShardValues, target: &mut Vec<f32>) -> Result<()> {
        self.executor.read_values(values, target);
        Ok(())
    }

    fn write_values(&mut self, values: &ShardValues, source: &[f32]) -> Result<()> {
        self.executor.write_values(values, source);
        Ok(())
    }
}
