//! Norms of rows and of heads.

pub(super) mod rms_norm;
pub(super) mod l2_norm;
pub(super) mod layer_norm;
