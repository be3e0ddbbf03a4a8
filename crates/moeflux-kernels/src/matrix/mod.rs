//! Weights as files store them: the kinds of matrices, checked views of their bytes, and their
//! values.
//!
//! **Invariant:** decoding gives the values that the format's own library gives. This module knows
//! no products.

pub(crate) mod blocks;
pub(crate) mod format;
pub(crate) mod decode;
