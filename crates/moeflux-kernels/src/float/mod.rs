//! Products in f32: activations that are padded and summed, and their products with every kind of
//! matrix.
//!
//! **Invariant:** sums have the order stated in the crate's documentation, and activations are not
//! rounded.

pub(crate) mod activations;
pub(crate) mod product;
