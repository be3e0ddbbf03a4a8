//! NEON: four lanes at a time.
//!
//! Two by two outputs take sixteen of the thirty-two registers.

use crate::dispatch::{KernelTable, kernel_table};

kernel_table!("neon", tile: 2 x 2, features: "neon");

pub(super) fn table() -> Option<&'static KernelTable> {
    std::arch::is_aarch64_feature_detected!("neon").then_some(&TABLE)
}
