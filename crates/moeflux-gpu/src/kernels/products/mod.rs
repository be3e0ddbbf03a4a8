//! Products with matrices: the kinds of weights, the division of a product over invocations, and
//! the ops that are products.

pub(super) mod decode_matrix;
pub(super) mod matvec;
pub(super) mod tile;
pub(super) mod coop_tile;
pub(super) mod matmul;
pub(super) mod head_matmul;
pub(super) mod fused_products;
