//! Attention over keys and values or over latents, and the rotation of queries and keys.

pub(super) mod attend;
pub(super) mod kv_attention;
pub(super) mod mla_attention;
pub(super) mod rope;
pub(super) mod fused_heads;
pub(super) mod select_positions;
