//! The routed experts of a model, wherever they are.
//!
//! A layer's choice goes in, experts come out in groups as they arrive. **Invariant:** what is
//! handed out stays in memory, unchanged, until the next group is asked for; each expert comes
//! once. Who computes never asks where they came from.

pub(crate) mod policy;
pub(crate) mod table;
pub(crate) mod predict;
pub(crate) mod trace;
pub(crate) mod replay;
mod ahead;
pub(crate) mod stream;
mod resident;
mod arrived;

pub use ahead::for_each_expert;
pub use arrived::{Arrived, ArrivedExpert, SlotExperts};
pub use resident::{ResidentExperts, RestStats};

use std::time::Duration;

use moeflux_io::Caching;

use crate::error::Result;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::Progress;
use predict::Stage;
use stream::{Move, Stream, StreamStats};

/// What the rows of a step chose in one layer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Whose experts.
    pub layer: LayerIdx,
    /// Those of each row, row by row.
    pub chosen: &'a [ExpertIdx],
    /// Whether the rows are few or answers': then experts come in any order.
    pub is_small: bool,
}

/// In which order the groups of a layer come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// All experts of a group behind those of the groups before, and ascending within it: what
    /// they give may be added up as they come.
    Ascending,
    /// In any order: what they give is kept for its turn.
    #[default]
    Any,
}

/// All experts of a model.
#[derive(Debug)]
pub enum Experts {
    /// In memory, or on their way there for good.
    Resident(ResidentExperts),
    /// On the device that computes, which finds them by itself.
    OnDevice,
    /// On a drive, some of them in memory.
    Streaming(Box<Stream>),
}

impl Experts {
    /// A step of this many rows begins; it is small if they are few or answers'.
    pub fn begin_step(&mut self, n_rows: usize, is_small: bool) {
        match self {
            Self::Resident(_) | Self::OnDevice => {}
            Self::Streaming(stream) => stream.begin_step(n_rows, is_small),
        }
    }

    /// Asks for the experts of a layer.
    ///
    /// # Errors
    ///
    /// When reading does not work any more.
    ///
    /// # Panics
    ///
    /// If the layer has no experts, or not these.
    pub fn request(&mut self, request: &Request<'_>) -> Result<()> {
        match self {
            Self::Resident(resident) => resident.request(request),
            Self::OnDevice => unreachable!("layers are submitted whole"),
            Self::Streaming(stream) => stream.request(request),
        }
    }

    /// Experts that were asked for and are in memory, each once; waits until there are some.
    /// `None` once all have been given out.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Expert`] when one cannot be read.
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

    /// How they are read from drives; `None` where they are not.
    #[must_use]
    pub fn caching(&self) -> Option<Caching> {
        match self {
            Self::Resident(_) | Self::OnDevice => None,
            Self::Streaming(stream) => Some(stream.caching()),
        }
    }

    /// Several machines have some rows each of every expert: from now on what is handed out stays
    /// as it is until [`Experts::end_wave`], and there is always room for so many experts.
    pub fn hold_waves(&mut self, n_experts: usize) {
        match self {
            Self::Resident(_) | Self::OnDevice => {}
            Self::Streaming(stream) => stream.hold_waves(n_experts),
        }
    }

    /// Until [`Experts::end_wave`] nothing is handed out from this expert on.
    pub fn begin_wave(&mut self, end: ExpertIdx) {
        match self {
            Self::Resident(resident) => resident.begin_wave(end),
            Self::OnDevice => {}
            Self::Streaming(stream) => stream.begin_wave(end),
        }
    }

    /// All that was handed out of this wave.
    pub fn wave(&mut self) -> Arrived<'_> {
        match self {
            Self::Resident(resident) => Arrived::of_bank(resident.wave(), Order::Ascending),
            Self::OnDevice => Arrived::ascending(&[]),
            Self::Streaming(stream) => Arrived::of_group(stream.wave(), Order::Ascending),
        }
    }

    /// What was handed out of this wave is not needed any more.
    pub fn end_wave(&mut self) {
        match self {
            Self::Resident(resident) => resident.end_wave(),
            Self::OnDevice => {}
            Self::Streaming(stream) => stream.end_wave(),
        }
    }

    /// How many experts may be handed out before any of them is given back.
    #[must_use]
    pub fn n_at_once(&self) -> usize {
        match self {
            Self::Resident(_) | Self::OnDevice => usize::MAX,
            Self::Streaming(stream) => stream.stats().n_slots,
        }
    }

    /// What a device should bring to its own memory before it is given anything else, of what it
    /// was given last: asked until there is nothing more.
    pub fn next_move(&mut self) -> Option<Move<'_>> {
        match self {
            Self::Resident(_) | Self::OnDevice => None,
            Self::Streaming(stream) => stream.next_move(),
        }
    }

    /// Whether a layer's router should be asked before its turn.
    pub fn is_asking(&mut self, is_small: bool) -> bool {
        match self {
            Self::Resident(_) | Self::OnDevice => false,
            Self::Streaming(stream) => stream.is_asking(is_small),
        }
    }

    /// What `layer` is likely to ask for: `named` experts of each row, with their weights. They
    /// may be read while there is nothing better to do.
    ///
    /// # Errors
    ///
    /// When reading does not work any more.
    pub fn guess(&mut self, layer: (LayerIdx, Stage), named: (&[ExpertIdx], &[f32])) -> Result<()> {
        match self {
            Self::Resident(_) | Self::OnDevice => Ok(()),
            Self::Streaming(stream) => stream.guess(layer, named),
        }
    }

    /// Forgets what was asked for: the step will not go on.
    pub fn give_up(&mut self) {
        match self {
            Self::Resident(resident) => resident.give_up(),
            Self::OnDevice => {}
            Self::Streaming(stream) => stream.give_up(),
        }
    }

    /// Keeps so many experts in memory from now on, where not all are.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`]: there are as many as before then, or some more.
    pub fn resize(&mut self, n_slots: usize) -> Result<()> {
        match self {
            Self::Resident(_) | Self::OnDevice => Ok(()),
            Self::Streaming(stream) => stream.resize(n_slots),
        }
    }

    /// Does without so many of the slots, whose memory somebody else may have until fewer are lent:
    /// it is free when this is over. Whether that could be; no slots can always be lent.
    ///
    /// # Errors
    ///
    /// When reading does not work any more; [`crate::error::Error::NoRoom`] if slots cannot be had
    /// back: there are as many as before then, or some more.
    pub fn lend(&mut self, n_slots: usize) -> Result<bool> {
        match self {
            Self::Resident(_) | Self::OnDevice => Ok(n_slots == 0),
            Self::Streaming(stream) => stream.lend(n_slots),
        }
    }

    /// Waits for at most `limit` for experts that are still read behind the open model: see
    /// [`ResidentExperts::wait_for_rest`]. `None` where none are.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_for_rest(&mut self, limit: Duration, again: bool) -> Result<Option<Progress>> {
        match self {
            Self::Resident(resident) => resident.wait_for_rest(limit, again),
            Self::OnDevice | Self::Streaming(_) => Ok(None),
        }
    }

    /// How experts came that are read behind the open model; `None` where none are.
    pub fn rest_stats(&mut self) -> Option<RestStats> {
        match self {
            Self::Resident(resident) => Some(resident.stats()),
            Self::OnDevice | Self::Streaming(_) => None,
        }
    }

    /// Time for which computing waited for the drive so far.
    pub(crate) fn read_wait(&self) -> Duration {
        match self {
            Self::Resident(_) | Self::OnDevice => Duration::ZERO,
            Self::Streaming(stream) => stream.read_wait(),
        }
    }

    /// What streaming has done so far; `None` where nothing is streamed.
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
