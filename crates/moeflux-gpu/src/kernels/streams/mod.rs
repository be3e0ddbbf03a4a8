//! Functions of values, and sums over residual streams.

pub(super) mod activate;
pub(super) mod head_dot;
pub(super) mod stream_read;
pub(super) mod stream_write;
