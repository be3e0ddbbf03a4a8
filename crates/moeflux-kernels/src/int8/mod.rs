//! Products of matrices with activations rounded to int8.
//!
//! # The arithmetic of int8 mode
//!
//! * **Activations** are rounded per group of the matrix (32, 64 or 128 columns). With `m` the
//!   largest magnitude of the group, `q = rint(x * (127 / m))`, ties to even, and the group's step
//!   is `m / 127`. A group whose `m` is below 2^-100 is all zeros. A group with an infinity or a
//!   NaN has a step of NaN, so that broken values are noticed and not rounded away.
//! * **A group's sum** of `code * q` is an exact integer, at most 255 * 127 * 128 < 2^24.
//! * **One output element** takes the groups of its row in ascending order, from +0:
//!   `acc = fma(scale * step, sum(code * q), acc)`, then `acc = fma(bias, step * sum(q), acc)`.
//!
//! So a result does not depend on the instruction set, on the number of activation rows computed
//! together, or on the division of rows among threads. Sixteen rows of a matrix are computed at a
//! time, one in each lane. `blocks/` handles blocks that carry their own scales.

mod simd;
mod rows;
mod block;
mod inputs;
mod tile;
mod stream;
mod strips;
mod several;
mod blocks;
mod product;

pub(crate) use blocks::{BlockMatrix, BlockScratch, unpack_blocks};
pub use inputs::{IntInputs, IntProduct, IntScratch, RepackedRows};
pub(crate) use product::matmul;
pub use rows::{IntRowShape, IntRows, QuantisedRow};
pub(crate) use rows::{ValueOrder, quantise};
#[cfg(target_arch = "aarch64")]
pub(crate) use simd::StoredQuads;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use simd::int_simd_by_functions;
pub(crate) use simd::{HalfKind, IntSimd};
pub(crate) use tile::{CodeTile, TileScales};
#[cfg(target_arch = "x86_64")]
pub(crate) use {
    block::{AffineBlock, RowBlock, expand_codes},
    blocks::BlockRows,
    inputs::{CacheLine, Factors, Square, ensure_len},
    rows::IntRow,
    simd::PIECE,
    strips::strip_lines,
    tile::{TILE_COLS, TileSource, add_terms},
};
