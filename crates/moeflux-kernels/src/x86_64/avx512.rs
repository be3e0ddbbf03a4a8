//! AVX-512 (F, BW, DQ, VL): sixteen lanes at a time.
//!
//! Four by four outputs take sixteen of the thirty-two registers.

use crate::dispatch::{KernelTable, kernel_table};

kernel_table!(
    "avx512", tile: 4 x 4, features: "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
);

pub(super) fn table() -> Option<&'static KernelTable> {
    let is_available = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    is_available.then_some(&TABLE)
}
