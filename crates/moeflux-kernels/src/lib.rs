//! CPU kernels: weight formats, products and vector kernels, with little code per instruction set.
//!
//! **Invariant:** no I/O, no threads, no knowledge of models. The public functions are safe, and
//! every [`KernelTable`] gives the same bits.
//!
//! There are two modes of arithmetic, int8 and f32. They differ only in products with affine
//! matrices and blocks: int8 rounds activations, as `int8/mod.rs` states; f32 does not.
//!
//! # The arithmetic of f32 mode
//!
//! All values are `f32`; `fma` rounds once.
//! * A **group** is the quantisation group of an affine row (32, 64 or 128 columns), the columns of
//!   a block of FP8 (128 if scales cover whole rows), or 64 columns of plain floats and of the
//!   weights of blocks that carry their own scales, as decoded by [`decode_row`]. A short last
//!   group is padded with zeros.
//! * A **group's sum** has 16 lanes, all starting from +0: lane `j` takes columns `j`, `j + 16`, ..
//!   of the group in ascending order, by `fma` for a dot product and by addition for a plain sum.
//!   Then lane `j` += lane `j + 8`, += `j + 4`, += `j + 2`, += `j + 1`.
//! * **One output element** takes the groups of its row in ascending order, from +0. Affine:
//!   `acc = fma(scale, dot(codes, x), acc)`, then `acc = fma(bias, sum(x), acc)`. FP8:
//!   `acc = fma(scale, dot(values, x), acc)`. Plain floats and weights of blocks:
//!   `acc = acc + dot(values, x)`.
//! * **A transposed element** takes the rows in ascending order, from +0:
//!   `acc = fma(x[row], value[row][col], acc)`, where an affine value is `fma(code, scale, bias)`,
//!   an FP8 value `value * scale`.
//! * [`KernelTable::dot`] is one group as long as its vectors.
//! * **Attention** takes positions in blocks. A score is such a dot product times the scale; with
//!   several parts, their sum in the order of the parts. A block's exponentials are summed as one
//!   group from its first visible position. An output element is multiplied by the block's factor,
//!   then takes positions in ascending order: `out = fma(weight, value, out)`. Values stored as f16
//!   are widened exactly.
//! * **A score that chooses a key**: a head's product takes columns in ascending order, by `fma`
//!   from +0. Weights times products, where a negative one counts as +0, are summed as one group.
//! * **Attention over 8-bit codes**: see `cached.rs` for the codes. Keys that are not also values
//!   are padded to whole groups and spread before they are rounded, and so are the queries for them
//!   (`spread.rs`). A score is the product of the query, rounded to int8, with the codes as a
//!   matrix: see `int8/mod.rs`. An output element takes
//!   `out = fma(weight * scale, code, out)`, and after the block's last position the sum of
//!   `weight * bias` over its positions, as one group.
//! * **A sum of squares** has four sums of 16 lanes, which take chunks of 16 values in turn. They
//!   are added as `(0 + 1) + (2 + 3)`, then the lanes as those of a group.
//! * **The delta rule** is applied token by token; each of its sums over keys ascends, by `fma`
//!   from +0, and `S += delta k^T` is `fma(delta, k, S)`.
//! * **Exponentials, sigmoid, SiLU, softplus** are this crate's own, value by value, within 4 units
//!   in the last place: see `lanes/gates.rs`.
//!
//! So a result does not depend on the instruction set, on the number of activation rows computed
//! together, or on the division of rows among threads.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! cpu          how to prefetch memory, and the fastest way to do it
//! lanes/       sixteen f32 at a time: the trait Simd and what is built on it
//!   fused, rounding          operations on single values that round alike everywhere
//!   gates                    exponentials, sigmoid, SiLU, softplus
//!   codes                    stored codes and values to f32
//!   vector                   products and sums of plain vectors
//! matrix/      weights as files store them
//!   blocks/                  ggml's blocks that carry their own scales
//!   format                   the kinds of matrices, and checked views of their bytes
//!   decode                   one row to f32
//! float/       products in f32: activations, product
//! cached       keys and values in a cache
//! prefetch     memory that is fetched during other computation
//! attention/   scores and softmax of a block of positions
//!   choice                   scores by which keys are chosen
//!   weighted                 sums of a block's values
//! delta        the gated delta rule
//! spread       the transform of keys before they are rounded to codes
//! functions    functions and products of values
//! rowop        operations on one row: norms, rope, gates, convolution, sums of experts
//! int8/        products with rounded activations
//!   simd                     the trait IntSimd
//!   rows, inputs             rounded activations, and the description of a product
//!   block, tile              sixteen rows of a matrix in memory, and unpacked columns of them
//!   stream, strips, several  products with one row, with packed rows, with several rows
//!   blocks/                  products with blocks that carry their own scales
//!   product                  the generic body of every table
//! table/       the kernels of one instruction set; fill: rows for its products
//! scalar       the table that all others are tested against
//! aarch64/     tables of NEON, dotprod, i8mm
//! x86_64/      tables of AVX2, AVX-512, their VNNI, AMX
//! dispatch     the tables that this CPU can run
//! tests/       every table against the scalar one
//! ```
#![allow(unsafe_code, reason = "SIMD entry points; every block is documented and tested")]

mod cpu;
mod lanes;
mod matrix;
mod float;
mod cached;
mod prefetch;
mod attention;
mod delta;
mod spread;
mod functions;
mod rowop;
mod int8;
mod table;
mod scalar;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;
mod dispatch;
#[cfg(test)]
mod tests;

pub use attention::choice::{ChoiceInputs, ChoiceQueries};
pub use attention::weighted::WeightedRows;
pub use attention::{BLOCK_POSITIONS, ScoreInputs, ScorePart, SoftmaxState, SoftmaxUpdate};
pub use cached::{CachedRows, CachedValues, CodeShape};
pub use delta::DeltaRun;
#[cfg(any(test, feature = "emulated"))]
pub use dispatch::emulated;
pub use dispatch::{available, best, by_name};
pub use float::activations::{Activations, RowShape};
pub use float::product::{FloatProduct, ROWS_PER_BLOCK, TransposedProduct};
pub use functions::{AddedProducts, ScaledFunction, ValueFunction};
pub use int8::{
    IntInputs, IntProduct, IntRowShape, IntRows, IntScratch, QuantisedRow, RepackedRows,
};
pub use lanes::rounding::round_to_f16;
pub use lanes::vector::StridedRows;
pub use matrix::blocks::{BlockKind, E2M1_VALUES, IQ2_XXS_GRID, IQ3_XXS_GRID, IQ4_VALUES};
pub use matrix::decode::decode_row;
pub use matrix::format::{
    Affine, Biases, FloatKind, Fp8, Fp8Spread, LayoutError, Matrix, MatrixKind, MatrixLayout,
    ScaleKind,
};
pub use rowop::{RopePairs, RowOp};
pub use spread::Spread;
pub use table::KernelTable;
