//! The interface between model code and devices.
//!
//! **Invariant:** a backend interprets plans. It is independent of the model that a plan belongs
//! to, and never waits for the disk.

pub(crate) mod session_budget;
pub(crate) mod kv;
pub(crate) mod host;
mod best;
pub(crate) mod cpu;
pub(crate) mod reference;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::session_budget::SessionBudget;
use crate::error::{Error, Result};
use crate::experts::Arrived;
use crate::experts::stream::{DeviceMove, SlotMapping};
use crate::ids::{BufferId, ExpertIdx, LayerIdx, StateId};
use crate::ops::{Batch, Heads, KvKind, Plan, Purpose, Routes, StateSpec};
use crate::weights::ExpertView;

/// Arithmetic of products with quantised weights, and storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arithmetic {
    /// Activations, keys and values as f32.
    F32,
    /// As `F32`, but products over many rows take weights and activations as f16 and sum in f32.
    F16Staged,
    /// Activations as int8, quantised per weight group; keys and values as f16.
    Int8,
    /// As `Int8`, with keys and values quantised to 8 bits and queries as int8. Keys and queries
    /// are spread first: see [`moeflux_kernels::Spread`].
    Int8Kv8,
}

impl Arithmetic {
    /// Returns the storage type of keys, values and latents.
    #[must_use]
    pub const fn kv_kind(self) -> KvKind {
        match self {
            Self::F32 | Self::F16Staged => KvKind::F32,
            Self::Int8 => KvKind::F16,
            Self::Int8Kv8 => KvKind::Codes,
        }
    }

    /// Returns whether products with affine matrices round activations to int8.
    #[must_use]
    pub const fn rounds_activations(self) -> bool {
        matches!(self, Self::Int8 | Self::Int8Kv8)
    }

    /// Returns the name for logs and saved states: at most 8 bytes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16Staged => "f16",
            Self::Int8 => "int8",
            Self::Int8Kv8 => "int8-kv8",
        }
    }
}

/// Identification of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNames {
    /// Backend name: "reference", "cpu" or "gpu".
    pub backend: &'static str,
    /// Arithmetic mode.
    pub arithmetic: Arithmetic,
    /// Instruction set ("scalar", "avx2") or API of a GPU. It affects speed, never results.
    pub isa: &'static str,
    /// Version of the backend's results, incremented by each change that altered a bit of any
    /// result. A saved state belongs to one version.
    pub bits_version: u32,
    /// A hash of the GPU's name and driver, on which its results may depend; 0 for a CPU.
    pub device_hash: u64,
}

/// Statistics of routed experts kept on a device, some of them in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes in device memory.
    pub near_bytes: u64,
    /// Bytes in host memory.
    pub far_bytes: u64,
    /// Counted uses of experts in device memory. One use is one row that an expert computes.
    pub near_uses: u64,
    /// All counted uses.
    pub uses: u64,
    /// Experts moved to device memory, each in exchange for another.
    pub swaps: u64,
}

/// Values of sharded experts that machines exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardValues {
    /// Columns of the output of [`crate::ops::Op::ExpertUp`]: a row for each use in the chunk.
    Inner(Range<usize>),
    /// Columns of a buffer that [`crate::ops::Op::ExpertDown`] adds to: a row for each row of the
    /// batch.
    Sum(Heads),
}

/// A part of a session's state that can be read and written as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// A layer's state at positions `first .. first + n`.
    Positions {
        /// Layer of the state.
        layer: LayerIdx,
        /// First position.
        first: usize,
        /// Number of positions.
        n: usize,
    },
    /// The folded history of a recurrent layer.
    Recurrent {
        /// Layer of the state.
        layer: LayerIdx,
    },
    /// The folded history at a mark of the last step: see [`crate::ops::Segment::marks`].
    /// Read-only.
    Marked {
        /// Layer of the state.
        layer: LayerIdx,
        /// Index of the mark.
        mark_idx: usize,
    },
}

/// A device that holds a model's workspace and its sessions' states, and runs plans in order.
///
/// **Invariant:** no method has a default body, so a wrapper around a device cannot omit one.
pub trait Backend: fmt::Debug + Send {
    /// Returns the names for logs. A saved state belongs to one arithmetic.
    fn names(&self) -> DeviceNames;

    /// Returns the maximum number of rows in a step.
    fn n_rows_max(&self) -> usize;

    /// Resizes the workspace for steps of at most `n_rows_max` rows. Its contents are lost; the old
    /// memory is freed before the new is allocated. Sessions' states are kept.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] on devices whose workspace has a fixed size. [`Error::NoRoom`] if
    /// memory is short; the workspace then has its previous size.
    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()>;

    /// Runs a plan over the rows of `batch`.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()>;

    /// Returns the routes of the last [`crate::ops::Op::Route`] of this purpose. Waits for them if
    /// plans run asynchronously.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn routes(&mut self, purpose: Purpose) -> Result<&Routes>;

    /// Runs an expert plan for the arrived experts, over the rows that chose them. The groups of a
    /// layer deliver each expert once, all in the same [`crate::experts::ArrivalOrder`].
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()>;

    /// Swaps the first rows of a buffer with rows kept beside it, which are initially zero.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn swap_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()>;

    /// Writes the first rows of a buffer, with all of their columns, before the next submitted plan
    /// reads them: `[n_rows, n_cols]`.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn write_rows(&mut self, buffer: BufferId, values: &[f32]) -> Result<()>;

    /// Reads the start of one row of a buffer, after all submitted work. `target` is at most as
    /// long as the buffer has columns.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()>;

    /// Returns whether reading routes stalls the device. If so, all routers are queried together,
    /// and only the logits that are needed are read back.
    fn reads_stall(&self) -> bool;

    /// Returns the state of sessions.
    fn states(&self) -> &dyn SessionStates;

    /// Returns the state of sessions, mutably.
    fn states_mut(&mut self) -> &mut dyn SessionStates;

    /// Returns the interface for experts computed in two halves; `None` if the device computes only
    /// whole experts.
    fn sharding(&mut self) -> Option<&mut dyn ExpertSharding>;

    /// Returns the interface for routed experts in device memory; `None` if the device computes
    /// from host memory.
    fn tiers(&self) -> Option<&dyn ExpertTiers>;

    /// Returns the same interface, mutably.
    fn tiers_mut(&mut self) -> Option<&mut dyn ExpertTiers>;
}

impl dyn Backend + '_ {
    /// Returns the interface for experts computed in two halves.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device computes only whole experts.
    pub fn sharding_or_refuse(&mut self) -> Result<&mut dyn ExpertSharding> {
        let backend = self.names().backend;
        let problem = || Error::Unsupported(format!("{backend} computes whole experts only"));
        self.sharding().ok_or_else(problem)
    }

    /// Returns the interface for experts in device memory.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device computes from host memory.
    pub fn tiers_or_refuse(&mut self) -> Result<&mut dyn ExpertTiers> {
        let backend = self.names().backend;
        let problem = || Error::Unsupported(format!("{backend} keeps no experts of its own"));
        self.tiers_mut().ok_or_else(problem)
    }
}

/// The state of sessions on a device.
pub trait SessionStates: fmt::Debug + Send {
    /// Returns the budget from which session memory is booked.
    fn budget(&self) -> &Arc<SessionBudget>;

    /// Creates a session of at most `context` positions, with zeroed recurrent layers.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`] if memory is short.
    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId>;

    /// Allocates memory for positions of a session, before a step or [`SessionStates::write_state`]
    /// writes them.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`] if memory is short; existing contents are kept.
    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()>;

    /// Creates a session with the same history as another.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`] if memory is short; [`Error::Unsupported`] if the device
    /// cannot fork.
    fn fork_state(&mut self, state: StateId) -> Result<StateId>;

    /// Frees a session's memory. Unknown ids are ignored.
    fn drop_state(&mut self, state: StateId);

    /// Zeroes the recurrent parts of a session's state; positions need no clearing.
    fn reset_state(&mut self, state: StateId);

    /// Commits the recurrent state that the last step, or [`SessionStates::write_state`], wrote.
    /// Until then, recurrent layers keep their previous state.
    fn commit_state(&mut self, state: StateId);

    /// Allocates memory for the recurrent state that the next step stores at `n_marks` marks of a
    /// session, and discards what was stored before.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short; [`Error::Unsupported`] on devices without marks.
    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()>;

    /// Returns the size of a part of a state in bytes.
    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize;

    /// Copies a part of a state to `target`, which has [`SessionStates::state_part_bytes`] bytes.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()>;

    /// Overwrites a part of a state from `source`, which has [`SessionStates::state_part_bytes`]
    /// bytes. Recurrent layers take effect with [`SessionStates::commit_state`]; all of them must
    /// have been written by then.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()>;
}

/// Experts whose rows are sharded among several machines.
pub trait ExpertSharding: fmt::Debug + Send {
    /// Begins a chunk: some experts of the last route that are computed in two halves,
    /// [`crate::ops::Op::ExpertUp`] and [`crate::ops::Op::ExpertDown`]. Their indices ascend, above
    /// those of earlier chunks. Returns the number of uses: each row of each expert counts. Between
    /// the halves, [`ExpertSharding::write_values`] completes a row of `n_inner` values for each
    /// use. Uses are ordered by expert, then by row.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn begin_chunk(&mut self, experts: &[ExpertIdx], n_inner: usize) -> Result<usize>;

    /// Reads some columns of the values of sharded experts, row by row.
    ///
    /// # Errors
    ///
    /// As [`ExpertSharding::begin_chunk`].
    fn read_values(&mut self, values: &ShardValues, target: &mut Vec<f32>) -> Result<()>;

    /// Writes the corresponding values from another machine.
    ///
    /// # Errors
    ///
    /// As [`ExpertSharding::begin_chunk`].
    fn write_values(&mut self, values: &ShardValues, source: &[f32]) -> Result<()>;
}

/// Routed experts that a device keeps in its own memory.
pub trait ExpertTiers: fmt::Debug + Send {
    /// Keeps a routed expert permanently on the device; its layer has `n_experts`. Once all experts
    /// of a model are there, its layers can be submitted whole.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short.
    fn keep_expert(
        &mut self,
        at: (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<()>;

    /// Returns statistics of routed experts kept in two memories; `None` if they are not.
    fn tier_stats(&self) -> Option<TierStats>;

    /// Returns the device's access to slots in host memory, if it reads experts there.
    fn slot_mapping(&self) -> Option<Arc<dyn SlotMapping>>;

    /// Copies a streamed expert to a place in device memory; [`SlotMapping::n_device_slots`] gives
    /// the number of places.
    ///
    /// # Errors
    ///
    /// If the device fails; [`Error::Unsupported`] on devices without such places.
    fn copy_to_device(&mut self, expert: &DeviceMove<'_>) -> Result<()>;
}
