//! Recurrent layers: the causal convolution and the gated delta rule.

pub(super) mod causal_conv;
pub(super) mod delta_gates;
pub(super) mod gated_delta;
pub(super) mod fused_delta;
