//! Routed experts, and the sum of their outputs.

pub(super) mod expert_ffn;
pub(super) mod combine;
pub(super) mod fused_down;
