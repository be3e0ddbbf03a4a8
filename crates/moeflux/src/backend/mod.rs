//! The seam between model code and devices.
//!
//! **Invariant:** a backend interprets plans; it never learns which model they belong to, and
//! never waits for the disk.

pub(crate) mod room;
pub(crate) mod kv;
pub(crate) mod host;
mod best;
pub(crate) mod cpu;
pub(crate) mod reference;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::room::Room;
use crate::error::{Error, Result};
use crate::experts::Arrived;
use crate::experts::stream::{Move, SlotSight};
use crate::ids::{BufferId, ExpertIdx, LayerIdx, StateId};
use crate::ops::{Batch, Heads, KvKind, Plan, Purpose, Routes, StateSpec};
use crate::weights::ExpertView;

/// How products with quantised weights are computed, and how keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arithmetic {
    /// Activations, keys and values as f32.
    F32,
    /// The same, but products of many rows take weights and activations as f16 and sum in f32.
    F16Staged,
    /// Activations as int8 per group of the weights, keys and values as f16.
    Int8,
    /// The same, with keys and values as codes of 8 bits and queries as int8.
    Int8Kv8,
}

impl Arithmetic {
    /// How keys, values and latents are kept.
    #[must_use]
    pub const fn kv_kind(self) -> KvKind {
        match self {
            Self::F32 | Self::F16Staged => KvKind::F32,
            Self::Int8 => KvKind::F16,
            Self::Int8Kv8 => KvKind::Codes,
        }
    }

    /// Whether products with affine matrices take activations rounded to int8.
    #[must_use]
    pub const fn rounds_activations(self) -> bool {
        matches!(self, Self::Int8 | Self::Int8Kv8)
    }

    /// Name for logs and saved states, of at most 8 bytes.
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

/// What a backend calls itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNames {
    /// "reference", "cpu".
    pub backend: &'static str,
    /// Arithmetic mode.
    pub arithmetic: Arithmetic,
    /// Instruction set: "scalar", "avx2". It changes speed, never a result.
    pub isa: &'static str,
    /// Counts the changes of this backend that changed a bit of a result: a saved state belongs to
    /// one of them.
    pub bits_version: u32,
}

/// Routed experts that are kept on a device, some of them in the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes in the device's memory.
    pub near_bytes: u64,
    /// Bytes in the host's.
    pub far_bytes: u64,
    /// Uses of experts that were near, of those that were counted; a row that an expert computes is
    /// one.
    pub near_uses: u64,
    /// Uses that were counted.
    pub uses: u64,
    /// Experts that came near, each for another.
    pub swaps: u64,
}

/// Values of divided experts that travel between machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaveValues {
    /// Columns of what [`crate::ops::Op::ExpertUp`] gave: a row for each use of the wave.
    Inner(Range<usize>),
    /// Columns of a buffer that [`crate::ops::Op::ExpertDown`] adds to: a row for each row of the
    /// batch.
    Sum(Heads),
}

/// A part of a session's state that can be read and written as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// What a layer keeps of positions `first .. first + n`.
    Positions {
        /// Whose.
        layer: LayerIdx,
        /// First position.
        first: usize,
        /// Number of positions.
        n: usize,
    },
    /// The folded history of a recurrent layer.
    Recurrent {
        /// Whose.
        layer: LayerIdx,
    },
    /// The same behind a mark of the last step: see [`crate::ops::Segment::marks`]. Only read.
    Marked {
        /// Whose.
        layer: LayerIdx,
        /// Which mark.
        mark_idx: usize,
    },
}

/// A device that holds a model's workspace and its sessions' states, and runs plans in order.
///
/// **Invariant:** no method has a body here, so that what stands in front of a device forgets none.
pub trait Backend: fmt::Debug + Send {
    /// Names for logs; a saved state belongs to one arithmetic.
    fn names(&self) -> DeviceNames;

    /// Rows that one step may have at most.
    fn n_rows_max(&self) -> usize;

    /// Makes the workspace larger or smaller, for steps of so many rows at most; what it held is
    /// lost, and its memory given back before other is asked for. Sessions' states stay.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] on devices whose workspace stays as it is; [`Error::NoRoom`]: it has
    /// the size that it had then.
    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()>;

    /// Runs a plan over the rows of `batch`.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()>;

    /// What the last [`crate::ops::Op::Route`] of this purpose chose; waits for it where plans run
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn routes(&mut self, purpose: Purpose) -> Result<&Routes>;

    /// Runs an expert plan for the experts that have arrived, over the rows that chose them; the
    /// groups of a layer bring each expert once, all in the same [`crate::experts::Order`].
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()>;

    /// Exchanges the first rows of a buffer with rows kept beside it: zeros at first.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn exchange_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()>;

    /// One row of a buffer, after all that was submitted. At most the buffer's columns.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()>;

    /// Whether choices come back only by waiting for a device: then all that is asked of routers at
    /// a time is asked at once, and no more logits come back than are needed.
    fn is_remote(&self) -> bool;

    /// What sessions remember.
    fn states(&self) -> &dyn SessionStates;

    /// The same, to change it.
    fn states_mut(&mut self) -> &mut dyn SessionStates;

    /// Experts that are computed in two halves; `None` on devices that compute whole ones only.
    fn waves(&mut self) -> Option<&mut dyn ExpertWaves>;

    /// Routed experts in the device's own memory; `None` on devices that compute from the host's.
    fn tiers(&self) -> Option<&dyn ExpertTiers>;

    /// The same, to change them.
    fn tiers_mut(&mut self) -> Option<&mut dyn ExpertTiers>;
}

impl dyn Backend + '_ {
    /// Experts in two halves.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] on devices that compute whole ones only.
    pub fn waves_or_refuse(&mut self) -> Result<&mut dyn ExpertWaves> {
        let backend = self.names().backend;
        let problem = || Error::Unsupported(format!("{backend} computes whole experts only"));
        self.waves().ok_or_else(problem)
    }

    /// Experts in the device's own memory.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] on devices that compute from the host's memory.
    pub fn tiers_or_refuse(&mut self) -> Result<&mut dyn ExpertTiers> {
        let backend = self.names().backend;
        let problem = || Error::Unsupported(format!("{backend} keeps no experts of its own"));
        self.tiers_mut().ok_or_else(problem)
    }
}

/// What sessions remember on a device.
pub trait SessionStates: fmt::Debug + Send {
    /// What the memory of sessions is booked from.
    fn room(&self) -> &Arc<Room>;

    /// Makes a session of at most `context` positions, whose recurrent layers are zeroed.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`].
    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId>;

    /// Makes room for positions of a session, before a step or [`SessionStates::write_state`]
    /// writes them.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`]: what was there stays.
    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()>;

    /// Makes a session with the same past as another.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`]; [`Error::Unsupported`] on devices that cannot.
    fn fork_state(&mut self, state: StateId) -> Result<StateId>;

    /// Gives a session's room back. Unknown ids are ignored.
    fn drop_state(&mut self, state: StateId);

    /// Zeroes the recurrent parts of a session's state; positions need no clearing.
    fn reset_state(&mut self, state: StateId);

    /// Makes what the last step, or [`SessionStates::write_state`], wrote of a session's recurrent
    /// layers their state. Before that, and where it is not called, they have the state from
    /// before.
    fn commit_state(&mut self, state: StateId);

    /// Makes room for what the next step keeps at this many marks of a session, and forgets what
    /// was kept before.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::Unsupported`] on devices that keep none.
    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()>;

    /// Bytes of a part of a state.
    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize;

    /// Copies a part of a state out. `target` has [`SessionStates::state_part_bytes`] bytes.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()>;

    /// Overwrites a part of a state. `source` has [`SessionStates::state_part_bytes`] bytes. What
    /// is written of recurrent layers counts from [`SessionStates::commit_state`] on, when all of
    /// them must have been written.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()>;
}

/// Experts of which several machines compute some rows each.
pub trait ExpertWaves: fmt::Debug + Send {
    /// Begins some experts of the last choice that are computed in two halves,
    /// [`crate::ops::Op::ExpertUp`] and [`crate::ops::Op::ExpertDown`]: ascending, all behind those
    /// of the waves before. How many rows use them, each use counted. Between the halves a row of
    /// `n_inner` values of each use is completed by [`ExpertWaves::write_values`]: uses follow each
    /// other expert by expert, then row by row.
    ///
    /// # Errors
    ///
    /// When the device failed.
    fn begin_wave(&mut self, experts: &[ExpertIdx], n_inner: usize) -> Result<usize>;

    /// Some columns of what divided experts gave, row by row.
    ///
    /// # Errors
    ///
    /// As [`ExpertWaves::begin_wave`].
    fn read_values(&mut self, values: &WaveValues, target: &mut Vec<f32>) -> Result<()>;

    /// The same from another machine.
    ///
    /// # Errors
    ///
    /// As [`ExpertWaves::begin_wave`].
    fn write_values(&mut self, values: &WaveValues, source: &[f32]) -> Result<()>;
}

/// Routed experts that a device keeps in its own memory.
pub trait ExpertTiers: fmt::Debug + Send {
    /// Keeps a routed expert of a layer of `n_experts` on the device for good. Once all of a model
    /// are there, its layers can be submitted whole.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`].
    fn keep_expert(
        &mut self,
        at: (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<()>;

    /// Where routed experts lie that are kept in two memories, and how that went so far; `None`
    /// where they are not.
    fn tier_stats(&self) -> Option<TierStats>;

    /// How this device sees slots of the host's memory, if it reads experts there.
    fn slot_sight(&self) -> Option<Arc<dyn SlotSight>>;

    /// Brings a streamed expert to a place in the device's own memory: as many as
    /// [`SlotSight::n_near`] says.
    ///
    /// # Errors
    ///
    /// When the device failed; [`Error::Unsupported`] on devices that have no such places.
    fn bring_near(&mut self, expert: &Move<'_>) -> Result<()>;
}
