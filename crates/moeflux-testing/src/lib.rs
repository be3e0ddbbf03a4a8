//! What the tests of several crates share.
//!
//! Every crate of the workspace may name this one in its tests. Parts that need other crates are
//! behind features, so that the tests of a small crate do not build the engine:
//!
//! | part | feature |
//! |---|---|
//! | `temp_dir`, `random`, `examples` | |
//! | `cases`, `drives`, `matrices`, `ops` | `engine` |
//! | `gpu` | `gpu` |
//! | `hub` | `hub` |

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
