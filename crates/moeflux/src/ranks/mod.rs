//! Runs one model on several machines: each has some rows of every expert, and all other weights.
//!
//! Rank 0 is the engine that sessions use. It sends each operation on its device to the other ranks
//! as an [`RankCommand`]; in each sparse layer all ranks exchange the values that they computed. A
//! [`Ranks`] carries the bytes. **Invariant:** all ranks take part in every exchange, even after an
//! error on one of them: the error is sent instead of values, and all leave the step together. All
//! ranks hold the same activations to the bit; each exchange compares their hashes.

mod message_header;
mod command;
mod hello;
mod stats;
mod link;
mod leader;
mod local;

pub(crate) use command::{OwnedBatch, RankCommand};
pub(crate) use hello::Hello;
pub(crate) use leader::LeaderBackend;
pub(crate) use link::{ExchangeStage, RankLink, SharedLink, bytes_of};
pub use link::{KeepAlive, RankGroup};
pub use local::{LocalRanks, LocalSettings, RankFault};
pub use stats::{LinkStats, RankTimes};

use std::fmt;
use std::time::Duration;

use crate::error::Result;

/// The position of one machine among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTopology {
    /// Index of the rank, from 0.
    pub rank: usize,
    /// Hosts of all ranks, for messages.
    pub hosts: Vec<String>,
}

impl RankTopology {
    /// Returns the number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.hosts.len()
    }
}

/// The transport between the ranks of one job.
pub trait Ranks: fmt::Debug + Send {
    /// Returns the rank of this machine and the hosts of all.
    fn topology(&self) -> &RankTopology;

    /// Returns the current time, for measurements.
    fn now(&self) -> Duration;

    /// Sends a message to all other ranks and receives one from each: `from[r]` becomes that of
    /// rank r; this rank's own entry is unchanged. All ranks call this in the same order. Waits for
    /// others until the timeout.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Rank`] with a rank that did not answer.
    fn exchange(&mut self, own: &[u8], from: &mut [Vec<u8>]) -> Result<()>;

    /// Sends a command of rank 0 to all others, without waiting for them.
    ///
    /// # Errors
    ///
    /// As [`Ranks::exchange`].
    fn broadcast(&mut self, command: &[u8]) -> Result<()>;

    /// Sends a keep-alive from rank 0 to all others while it has no commands.
    ///
    /// # Errors
    ///
    /// As [`Ranks::exchange`].
    fn keep_alive(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits for the next command of rank 0, without limit while its keep-alives arrive.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Rank`] if rank 0 is gone.
    fn receive(&mut self, command: &mut Vec<u8>) -> Result<()>;

    /// Multiplies the timeout by `factor` from now on: ranks load a model at different rates.
    fn set_timeout_factor(&mut self, factor: u32);

    /// Ends the job after a fatal error; never waits.
    fn abort(&mut self, why: &str);
}
