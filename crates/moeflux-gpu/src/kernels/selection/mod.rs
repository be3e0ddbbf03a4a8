//! Choices of the best of a row: experts by a router, tokens by their logits.

pub(super) mod route;
pub(super) mod fused_route;
pub(super) mod best;
