//! Products with blocks that carry their own scales.
//!
//! Their groups have 32 or 16 columns. Activations are rounded per 32 columns for all kinds: two
//! groups of 16 share a step. Codes are signed. A group's scale and bias are the exact products
//! defined in `matrix/blocks/decoded.rs`. An output element takes its groups in ascending order, as
//! in `int8/mod.rs`; kinds without biases take only the first term.
//!
//! Codes are made unsigned by an offset, which the sum of a group's activations cancels: both are
//! exact integers. **Invariant:** vectors unpack a kind exactly as `matrix/blocks/decoded.rs` does.

mod chunk;
mod codebooks;
pub(super) mod kinds;
mod rows;
mod stream;

pub(super) use chunk::is_wide;
pub(super) use kinds::for_kind;
pub(crate) use rows::{BlockMatrix, BlockRows, BlockScratch, UnpackBlocks, unpack_blocks};
pub(super) use stream::multiply_one;
