//! Ranks connected by MPI: opens the available implementation if a launcher has started this
//! process as one of several.
//!
//! One binary works with Open MPI, MPICH and all implementations with the same interfaces, and
//! building it needs none of them. **Invariant:** without a launcher, nothing is opened. Every wait
//! has a deadline, except in MPI's own calls; a rank waits for commands as long as keep-alives
//! arrive.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! launcher     which launcher started this process
//! abi          the binary interfaces of MPI libraries
//! beside       where the launcher's own library may be
//! library      the functions of a library that is opened at run time
//! ranks        ranks that exchange messages through it
//! ```

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
