//! What several folders of kernels share: fragments of WGSL, and reductions over a workgroup.
//!
//! **Invariant:** nothing here belongs to one op.

pub(super) mod reduce;
