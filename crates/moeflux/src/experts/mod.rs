//! The routed experts of a model, wherever they are stored.
//!
//! The caller requests the experts that a layer chose and receives them in groups as they arrive.
//! **Invariant:** experts that were handed out stay in memory, unchanged, until the next group is
//! requested; each expert is handed out once. The caller does not know where an expert comes from.

pub(crate) mod policy;
pub(crate) mod table;
pub(crate) mod predict;
pub(crate) mod trace;
pub(crate) mod replay;
mod for_each;
mod uses;
mod times;
pub(crate) mod stream;
mod resident;
mod arrived;

pub use arrived::{Arrived, ArrivedExpert, SlotExperts};
pub use for_each::for_each_expert;
pub use resident::{ResidentExperts, RestStats};
pub use times::{LayerTime, StepTimes};
pub use uses::LayerExperts;

use std::time::Duration;

use moeflux_io::Caching;

use crate::error::Result;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::Progress;
use predict::GuessStage;
use stream::{DeviceMove, ExpertStream, StreamStats};

/// The experts that the rows of a step chose in one layer.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRequest<'a> {
    /// The layer whose experts are requested.
    pub layer: LayerIdx,
    /// The choices of each row, row by row.
    pub chosen: &'a [ExpertIdx],
    /// Whether the step has few rows or decodes; its experts may then come in any order.
    pub is_small: bool,
}

/// Order in which the groups of a layer come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrivalOrder {
    /// Each group's experts follow those of the groups before and ascend within the group. Outputs
    /// may be summed as they come.
    Ascending,
    /// Any order; outputs are kept until it is their turn in the sum.
    #[default]
    Any,
}

/// All experts of a model.
#[derive(Debug)]
pub enum Experts {
    /// In memory, or being loaded there for good.
    Resident(Box<ResidentExperts>),
    /// On the compute device, which finds them itself.
    OnDevice,
    /// On a drive, some of them in memory.
    Streaming(Box<ExpertStream>),
}

impl Experts {
    /// Begins a step of `n_rows` rows; `is_small` says whether they are few or decode.
    pub fn begin_step(&mut self, n_rows: usize, is_small: bool) {
        match self {
            Self::Resident(_) | Self::OnDevice => {}
            Self::Streaming(stream) => stream.begin_step(n_rows, is_small),
        }
    }

    /// Requests the experts of a layer.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Drive`] or [`crate::error::Error::Stopped`] once nothing can be read
    /// any more; [`crate::error::Error::Expert`] when an expert cannot be read.
    ///
    /// # Panics
    ///
    /// If the layer has no experts, or not these.
    pub fn request(&mut self, request: &ExpertRequest<'_>) -> Result<()> {
        match self {
            Self::Resident(resident) => resident.request(request),
            Self::OnDevice => unreachable!("layers are submitted whole"),
            Self::Streaming(stream) => stream.request(request),
        }
    }

    /// Returns requested experts that are in memory, each once; waits until there are some. Returns
    /// `None` once all have been handed out.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Expert`] when an expert cannot be read;
    /// [`crate::error::Error::Drive`] or [`crate::error::Error::Stopped`] once nothing can be read
    /// any more.
    pub fn next_ready(&mut self) -> Result<Option<Arrived<'_>>> {
        match self {
            Self::Resident(resident) => {
                let group = resident.next_ready()?;
                Ok(group.map(|(bank, experts, order)| Arrived::of_bank((bank, experts), order)))
            }
            Self::OnDevice => Ok(None),
            Self::Streaming(stream) => {
                let group = stream.next_ready()?;
                Ok(group.map(|(group, order)| Arrived::of_group(group, order)))
            }
        }
    }

    /// Returns how experts are read from drives; `None` where they are not streamed.
    #[must_use]
    pub fn caching(&self) -> Option<Caching> {
        match self {
            Self::Resident(_) | Self::OnDevice => None,
            Self::Streaming(stream) => Some(stream.caching()),
        }
    }

    /// Keeps slots for at least `n_experts` experts from now on, for chunks. Needed when several
    /// machines each hold some rows of every expert: what is handed out in a chunk stays valid
    /// until [`Experts::end_chunk`].
    pub fn reserve_for_chunks(&mut self, n_experts: usize) {
        match self {
            Self::Resident(_) | Self::OnDevice => {}
            Self::Streaming(stream) => stream.reserve_for_chunks(n_experts),
        }
    }

    /// Begins a chunk of experts: until [`Experts::end_chunk`], only experts before `end` are
    /// handed out.
    pub fn begin_chunk(&mut self, end: ExpertIdx) {
        match self {
            Self::Resident(resident) => resident.begin_chunk(end),
            Self::OnDevice => {}
            Self::Streaming(stream) => stream.begin_chunk(end),
        }
    }

    /// Returns all experts handed out in this chunk.
    pub fn chunk(&mut self) -> Arrived<'_> {
        match self {
            Self::Resident(resident) => Arrived::of_bank(resident.chunk(), ArrivalOrder::Ascending),
            Self::OnDevice => Arrived::ascending(&[]),
            Self::Streaming(stream) => Arrived::of_group(stream.chunk(), ArrivalOrder::Ascending),
        }
    }

    /// Ends the chunk: the experts handed out in it are no longer needed.
    pub fn end_chunk(&mut self) {
        match self {
            Self::Resident(resident) => resident.end_chunk(),
            Self::OnDevice => {}
            Self::Streaming(stream) => stream.end_chunk(),
        }
    }

    /// Returns the upper bound on experts that are handed out before any is released.
    #[must_use]
    pub fn n_at_once(&self) -> usize {
        match self {
            Self::Resident(_) | Self::OnDevice => usize::MAX,
            Self::Streaming(stream) => stream.stats().n_slots,
        }
    }

    /// Returns an expert of the last group that a device should copy to its own memory before it
    /// receives the next group. Called until it returns `None`.
    pub fn next_move(&mut self) -> Option<DeviceMove<'_>> {
        match self {
            Self::Resident(_) | Self::OnDevice => None,
            Self::Streaming(stream) => stream.next_move(),
        }
    }

    /// Returns whether a layer's router should be run ahead of its turn.
    pub fn needs_guess(&mut self, is_small: bool) -> bool {
        match self {
            Self::Resident(_) | Self::OnDevice => false,
            Self::Streaming(stream) => stream.needs_guess(is_small),
        }
    }

    /// Passes on the experts that `layer` is likely to request: `named` holds those of each row,
    /// with their weights. They may be read while the drive is idle.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Drive`] once nothing can be read any more;
    /// [`crate::error::Error::Expert`] when a requested expert cannot be read.
    pub fn guess(
        &mut self,
        layer: (LayerIdx, GuessStage),
        named: (&[ExpertIdx], &[f32]),
    ) -> Result<()> {
        match self {
            Self::Resident(_) | Self::OnDevice => Ok(()),
            Self::Streaming(stream) => stream.guess(layer, named),
        }
    }

    /// Drops the request, because the step is abandoned.
    pub fn give_up(&mut self) {
        match self {
            Self::Resident(resident) => resident.give_up(),
            Self::OnDevice => {}
            Self::Streaming(stream) => stream.give_up(),
        }
    }

    /// Keeps `n_slots` experts in memory from now on, where experts are streamed.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`] if memory cannot be allocated; the number of slots is
    /// unchanged.
    pub fn resize(&mut self, n_slots: usize) -> Result<()> {
        match self {
            Self::Resident(_) | Self::OnDevice => Ok(()),
            Self::Streaming(stream) => stream.resize(n_slots),
        }
    }

    /// Lends the memory of `n_slots` slots to other users, until fewer are lent; it is free when
    /// this returns. Returns whether that was possible; lending 0 slots always is.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Drive`] once nothing can be read any more;
    /// [`crate::error::Error::NoRoom`] if lent slots cannot be allocated again; the number of slots
    /// is then unchanged.
    pub fn lend(&mut self, n_slots: usize) -> Result<bool> {
        match self {
            Self::Resident(_) | Self::OnDevice => Ok(n_slots == 0),
            Self::Streaming(stream) => stream.lend(n_slots),
        }
    }

    /// Waits for at most `limit` for experts that are still being loaded in the background: see
    /// [`ResidentExperts::wait_for_load`]. Returns `None` where none are.
    ///
    /// # Errors
    ///
    /// As [`ResidentExperts::wait_for_load`].
    pub fn wait_for_load(&mut self, limit: Duration, again: bool) -> Result<Option<Progress>> {
        match self {
            Self::Resident(resident) => resident.wait_for_load(limit, again),
            Self::OnDevice | Self::Streaming(_) => Ok(None),
        }
    }

    /// Returns the progress of loading in the background; `None` where experts are not loaded that
    /// way.
    pub fn load_stats(&mut self) -> Option<RestStats> {
        match self {
            Self::Resident(resident) => Some(resident.stats()),
            Self::OnDevice | Self::Streaming(_) => None,
        }
    }

    /// Returns the time for which computing has waited for reads so far.
    pub(crate) fn read_wait(&self) -> Duration {
        match self {
            Self::Resident(_) | Self::OnDevice => Duration::ZERO,
            Self::Streaming(stream) => stream.read_wait(),
        }
    }

    /// Returns the experts of each layer that has some, with their uses; none where a device finds
    /// them itself.
    #[must_use]
    pub fn layers(&self) -> Vec<LayerExperts> {
        match self {
            Self::OnDevice => Vec::new(),
            Self::Resident(resident) => resident.layers(),
            Self::Streaming(stream) => stream.layers(),
        }
    }

    /// Returns the times of the last step of an answer; `None` before the first one, and where
    /// nothing is streamed.
    #[must_use]
    pub fn step_times(&self) -> Option<StepTimes> {
        match self {
            Self::Resident(_) | Self::OnDevice => None,
            Self::Streaming(stream) => stream.step_times(),
        }
    }

    /// Returns what streaming has done so far; `None` where nothing is streamed.
    #[must_use]
    pub fn stats(&self) -> Option<StreamStats> {
        match self {
            Self::Resident(_) | Self::OnDevice => None,
            Self::Streaming(stream) => Some(stream.stats()),
        }
    }
}

#[cfg(test)]
mod tests;
