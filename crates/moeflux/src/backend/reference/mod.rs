//! The oracle: interprets plans as slowly and as obviously as the ops' definitions read.
//!
//! Inputs and outputs of an op are f32. Everything between them is f64: every sum is taken in plain
//! ascending order and rounded to f32 once, where the op writes it. When another backend differs,
//! the oracle thus has no rounding of its own to excuse.
//! **Invariant:** a row's values depend only on its session's history, never on the other rows of
//! the step or on how a session was cut into steps. There are no threads, blocks or cached weights.
//! Intermediate values are rounded only where the model's definition rounds: the angle of a rope, a
//! router's scores, decoded weights.

mod attention;
mod decode;
mod delta;
mod linear;
mod pointwise;
mod selection;
mod streams;
mod experts;
mod router;
#[cfg(test)]
mod fixture;

use std::ops::Range;
use std::sync::Arc;

use crate::backend::best::best;
use crate::backend::host::{Buffers, HostStates};
use crate::backend::session_budget::SessionBudget;
use crate::backend::{
    Arithmetic, Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, ShardValues,
    StatePart,
};
use crate::error::{Error, Result};
use crate::experts::Arrived;
use crate::ids::{BufferId, ExpertIdx, StateId};
use crate::ops::{Batch, Heads, KvKind, Op, Plan, Purpose, Routes, RowSet, StateSpec, Workspace};
use crate::weights::Weights;

/// See [`DeviceNames::bits_version`].
const BITS_VERSION: u32 = 1;

/// Scalar arithmetic in host memory.
#[derive(Debug)]
pub struct ReferenceBackend {
    weights: Arc<Weights>,
    buffers: Buffers,
    states: HostStates,
    routes: Routes,
    guessed: Routes,
    /// `[row, rank, hidden]`: outputs of experts.
    partials: Vec<f32>,
    /// The experts of a chunk, ascending.
    chunk: Vec<ExpertIdx>,
    /// Output of [`Op::ExpertUp`] for each use in the chunk.
    inner: Vec<Vec<f64>>,
    n_rows_max: usize,
}

impl ReferenceBackend {
    /// Creates a backend for a model's weights and workspace, and for steps of at most `n_rows_max`
    /// rows.
    ///
    /// # Errors
    ///
    /// None at present; the signature matches other backends, which may lack memory or a device.
    pub fn new(weights: Arc<Weights>, workspace: &Workspace, n_rows_max: usize) -> Result<Self> {
        Ok(Self {
            weights,
            buffers: Buffers::new(workspace, n_rows_max),
            states: HostStates::default(),
            routes: Routes::default(),
            guessed: Routes::default(),
            partials: Vec::new(),
            chunk: Vec::new(),
            inner: Vec::new(),
            n_rows_max,
        })
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
            Op::ExpertFfn(_) | Op::ExpertUp(_) | Op::ExpertDown(_) => {
                unreachable!("expert plans go to submit_experts")
            }
            Op::Combine(op) => self.combine(op, n_rows),
            Op::TopK(op) => best(op, &mut self.buffers, n_rows),
        }
    }

    /// Returns the values of one head of one row.
    fn head(&self, heads: &Heads, row_idx: usize, head_idx: usize) -> Vec<f64> {
        widened(self.buffers.head(heads, row_idx, head_idx))
    }

    /// Rounds `values` to one head of one row.
    fn set_head(&mut self, heads: &Heads, row_idx: usize, head_idx: usize, values: &[f64]) {
        store(self.buffers.head_mut(heads, row_idx, head_idx), values);
    }
}

impl Backend for ReferenceBackend {
    fn names(&self) -> DeviceNames {
        DeviceNames {
            backend: "reference",
            arithmetic: Arithmetic::F32,
            isa: "scalar",
            bits_version: BITS_VERSION,
            device_hash: 0,
        }
    }

    fn n_rows_max(&self) -> usize {
        self.n_rows_max
    }

    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        self.partials = Vec::new();
        self.buffers.set_rows_max(n_rows_max)?;
        self.n_rows_max = n_rows_max;
        Ok(())
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        check_batch(batch, self.n_rows_max);
        let n_rows = match plan.rows() {
            RowSet::All => batch.rows.len(),
            RowSet::Outputs => {
                assert!(matches!(plan.ops().first(), Some(Op::SelectRows(_))), "rows are selected");
                batch.outputs.len()
            }
        };
        for op in plan.ops() {
            let is_allowed = plan.rows() == RowSet::All || !is_positional(op);
            assert!(is_allowed, "{} needs every row", op.name());
            self.run(op, batch, n_rows);
        }
        Ok(())
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        Ok(match purpose {
            Purpose::Compute => &self.routes,
            Purpose::Prefetch => &self.guessed,
        })
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        for op in plan.ops() {
            for place in 0..arrived.len() {
                let (expert, view) = (arrived.expert(place), arrived.view(place));
                match op {
                    Op::ExpertFfn(op) => self.expert_ffn(op, expert, &view),
                    Op::ExpertUp(op) => self.expert_up(op, expert, &view),
                    Op::ExpertDown(op) => self.expert_down(op, expert, &view),
                    other => unreachable!("{} is not an expert's op", other.name()),
                }
            }
        }
        Ok(())
    }

    fn swap_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()> {
        self.buffers.swap_rows(buffer, n_rows);
        Ok(())
    }

    fn write_rows(&mut self, buffer: BufferId, values: &[f32]) -> Result<()> {
        self.buffers.get_mut(buffer).values[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()> {
        let row = self.buffers.get(buffer).row(row_idx);
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

impl SessionStates for ReferenceBackend {
    fn budget(&self) -> &Arc<SessionBudget> {
        self.states.budget()
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        self.states.create(spec, KvKind::F32, context)
    }

    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()> {
        self.states.reserve(state, positions)
    }

    fn fork_state(&mut self, state: StateId) -> Result<StateId> {
        self.states.fork(state)
    }

    fn drop_state(&mut self, state: StateId) {
        self.states.remove(state);
    }

    fn reset_state(&mut self, state: StateId) {
        self.states.reset(state);
    }

    fn commit_state(&mut self, state: StateId) {
        self.states.commit(state);
    }

    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()> {
        self.states.set_marks(state, n_marks)
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        self.states.part_bytes(state, part)
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        self.states.read(state, part, target);
        Ok(())
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        self.states.write(state, part, source);
        Ok(())
    }
}

impl ExpertSharding for ReferenceBackend {
    fn begin_chunk(&mut self, experts: &[ExpertIdx], n_inner: usize) -> Result<usize> {
        let n_uses = experts.iter().map(|it| self.routes.uses_of(*it).count()).sum();
        self.chunk = experts.to_vec();
        self.inner = vec![vec![0.0; n_inner]; n_uses];
        Ok(n_uses)
    }

    fn read_values(&mut self, values: &ShardValues, _target: &mut Vec<f32>) -> Result<()> {
        Err(Error::Unsupported(format!("{} gives no {values:?}", self.names().backend)))
    }

    fn write_values(&mut self, values: &ShardValues, _source: &[f32]) -> Result<()> {
        Err(Error::Unsupported(format!("{} takes no {values:?}", self.names().backend)))
    }
}

/// Returns whether an op uses the batch's rows, not only the rows of a buffer.
fn is_positional(op: &Op) -> bool {
    matches!(
        op,
        Op::Embed(_)
            | Op::Rope(_)
            | Op::Attention(_)
            | Op::SelectPositions(_)
            | Op::MlaAttention(_)
            | Op::CausalConv(_)
            | Op::GatedDelta(_)
            | Op::Route(_)
            | Op::Combine(_)
    )
}

fn check_batch(batch: &Batch<'_>, n_rows_max: usize) {
    let n_rows = batch.rows.len();
    assert!(n_rows <= n_rows_max, "{n_rows} rows in a step of at most {n_rows_max}");
    let mut next_row = 0;
    for (segment_idx, segment) in batch.segments.iter().enumerate() {
        assert_eq!(segment.rows.start, next_row, "segments cover all rows in order");
        next_row = segment.rows.end;
        let rows = &batch.rows[segment.rows.clone()];
        let is_consecutive =
            rows.windows(2).all(|pair| pair[1].position.0 == pair[0].position.0 + 1);
        assert!(is_consecutive, "positions of a segment follow each other");
        let earlier = &batch.segments[..segment_idx];
        assert!(earlier.iter().all(|it| it.state != segment.state), "a session has one segment");
    }
    assert_eq!(next_row, n_rows, "segments cover all rows");
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "the one rounding of an op's output")]
fn rounded(value: f64) -> f32 {
    value as f32
}

fn store(target: &mut [f32], values: &[f64]) {
    assert_eq!(target.len(), values.len(), "an op fills its output");
    for (target, &value) in target.iter_mut().zip(values) {
        *target = rounded(value);
    }
}

/// Returns the sum of the products, in ascending order.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "both sides of a product are as long");
    let mut sum = 0.0;
    for (&x, &y) in x.iter().zip(y) {
        sum += x * y;
    }
    sum
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}
