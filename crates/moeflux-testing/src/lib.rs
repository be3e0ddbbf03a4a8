//! What the tests of several crates share.
//!
//! Every crate of the workspace may name this one in its tests. Parts that need other crates are
//! behind features, so that the tests of a small crate do not build the engine:
//!
//! | part | contents | feature |
//! |---|---|---|
//! | `examples` | runs the examples of a crate as programs | |
//! | `random` | random numbers from a seed | |
//! | `temp_dir` | folders of a test's own | |
//! | `gpu` | whether there is a GPU | `gpu` |
//! | `hub` | a hub on this machine, with every fault that a test asks for | `hub` |
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
