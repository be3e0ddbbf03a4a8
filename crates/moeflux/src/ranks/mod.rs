//! Several machines that run one model: each has some rows of every expert, and all of the rest.
//!
//! Rank 0 is the engine that sessions use. What it does to its device it tells to the others first,
//! as an [`Order`]; in each sparse layer all ranks exchange the values that they computed. What
//! carries the bytes is a [`Ranks`]. **Invariant:** all ranks take part in every exchange, whatever
//! went wrong on one of them: an error travels in the place of values, and all leave the step
//! together. All ranks hold the same activations to the bit; each exchange compares them.

mod note;
mod order;
mod hello;
mod stats;
mod link;
mod lead;
mod local;

pub(crate) use hello::Hello;
pub(crate) use lead::LeadBackend;
pub use link::{Heart, RankGroup};
pub(crate) use link::{Link, SharedLink, Stage, bytes_of};
pub use local::{Fault as RankFault, LocalRanks, LocalSettings};
pub(crate) use order::{Order, OwnedBatch};
pub use stats::{LinkStats, RankTimes};

use std::fmt;
use std::time::Duration;

use crate::error::Result;

/// One of the machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which, from 0.
    pub rank: usize,
    /// The hosts of all, for messages.
    pub hosts: Vec<String>,
}

impl Place {
    /// How many there are.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.hosts.len()
    }
}

/// What carries bytes between the ranks of one job.
pub trait Ranks: fmt::Debug + Send {
    /// Who this is.
    fn place(&self) -> &Place;

    /// What time it is, for measurements.
    fn now(&self) -> Duration;

    /// Sends a message to all other ranks, and receives one of each of them: `from[r]` becomes that
    /// of rank r; its own place stays as it is. All ranks call this in the same order. Waits for
    /// others no longer than the deadline.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Rank`] that names who did not answer.
    fn exchange(&mut self, own: &[u8], from: &mut [Vec<u8>]) -> Result<()>;

    /// Sends an order of rank 0 to all others, without waiting for them.
    ///
    /// # Errors
    ///
    /// As [`Ranks::exchange`].
    fn tell(&mut self, order: &[u8]) -> Result<()>;

    /// Says to all others that rank 0 is there, though it has no orders.
    ///
    /// # Errors
    ///
    /// As [`Ranks::exchange`].
    fn beat(&mut self) -> Result<()> {
        Ok(())
    }

    /// The next order of rank 0, however long that takes while it beats.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Rank`] if rank 0 is gone.
    fn hear(&mut self, order: &mut Vec<u8>) -> Result<()>;

    /// Waits so many times longer from now on: ranks load a model at different rates.
    fn set_patience(&mut self, factor: u32);

    /// The job is over because something cannot go on; never waits.
    fn abort(&mut self, why: &str);
}
