//! Code that the tests of several crates share.
//!
//! Every crate of the workspace may name this one in its tests. Parts that need other crates are
//! behind features, so that the tests of a small crate do not build the engine:
//!
//! | part | contents | feature |
//! |---|---|---|
//! | `examples` | runs the examples of a crate as programs | |
//! | `random` | random numbers from a seed | |
//! | `temp_dir` | temporary folders | |
//! | `gpu` | whether there is a GPU | `gpu` |
//! | `hub` | a hub on this machine, with faults on request | `hub` |
//! | `cases` | golden cases and measures of distance | `engine` |
//! | `drives` | checkpoints on simulated drives | `engine` |
//! | `matrices` | random weights in every kind of storage | `engine` |
//! | `ops` | the suite of operations | `engine` |

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on has failed"
)]

pub mod examples;
pub mod random;
pub mod temp_dir;

#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "hub")]
pub mod hub;

#[cfg(feature = "engine")]
pub mod cases;
#[cfg(feature = "engine")]
pub mod drives;
#[cfg(feature = "engine")]
pub mod matrices;
#[cfg(feature = "engine")]
pub mod ops;
