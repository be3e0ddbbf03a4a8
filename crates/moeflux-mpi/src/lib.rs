//! Ranks on MPI: whichever implementation there is, opened when a launcher has started this
//! process as one of several.
//!
//! One binary serves Open MPI, MPICH and all that share their interfaces, and nothing is needed to
//! build it. **Invariant:** without a launcher nothing is opened; nothing here waits without a
//! deadline, but for orders of rank 0.

mod launcher;
#[cfg(unix)]
mod abi;
#[cfg(unix)]
mod beside;
#[cfg(unix)]
mod library;
#[cfg(unix)]
mod ranks;

#[cfg(unix)]
pub use beside::Known;
pub use launcher::{Kind, Launcher, launcher};
#[cfg(unix)]
pub use library::end_process;
#[cfg(unix)]
pub use ranks::MpiRanks;
