//! The memory of requests: estimates of what each needs, and the pools that it is reserved from.
//!
//! **Invariant:** memory is reserved before it is used.

pub(crate) mod pools;
pub(crate) mod body_size;
pub(crate) mod estimate;
