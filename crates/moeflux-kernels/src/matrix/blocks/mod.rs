//! Blocks that carry their own scales: ggml's kinds, and their contents.
//!
//! **Invariant:** handles one block at a time; knows neither rows nor activations.

mod kind;
mod grids;
mod decoded;

pub(crate) use decoded::{DecodedBlock, SIGNS, half_power, power};
pub use decoded::{E2M1_VALUES, IQ2_XXS_GRID, IQ3_XXS_GRID, IQ4_VALUES};
pub use kind::BlockKind;
