//! Blocks that carry their own scales: ggml's kinds, and what is in them.
//!
//! **Invariant:** knows one block at a time, and neither rows nor what weights meet.

mod kind;
mod grids;
mod apart;

pub(crate) use apart::{Apart, SIGNS, half_power, power};
pub use apart::{E2M1_VALUES, IQ2_XXS_GRID, IQ3_XXS_GRID, IQ4_VALUES};
pub use kind::BlockKind;
