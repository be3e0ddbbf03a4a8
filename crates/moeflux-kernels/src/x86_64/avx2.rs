//! AVX2 and FMA: eight lanes at a time.
//!
//! Two by two outputs take eight of the sixteen registers.

use crate::dispatch::{KernelTable, kernel_table};

kernel_table!("avx2", tile: 2 x 2, features: "avx2,fma,f16c");

pub(super) fn table() -> Option<&'static KernelTable> {
    let is_available = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    is_available.then_some(&TABLE)
}
