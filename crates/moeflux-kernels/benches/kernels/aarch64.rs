//! A loop of multiplications for aarch64: enough independent sums to hide every latency.

use std::arch::aarch64::{vdupq_n_f32, vfmaq_f32};
use std::hint::black_box;

use crate::limits::{Loop, Operands};

/// Independent sums: four units with a latency of 4 need 16.
const N_SUMS: usize = 16;

/// Those that this CPU can run.
pub(crate) fn loops() -> Vec<Loop> {
    vec![Loop { isa: "neon", operands: Operands::F32, run: neon_f32 }]
}

#[target_feature(enable = "neon")]
fn neon_f32(n_rounds: usize) -> usize {
    let (a, b) = (vdupq_n_f32(black_box(0.5)), vdupq_n_f32(black_box(0.25)));
    let mut sums = [vdupq_n_f32(0.0); N_SUMS];
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = vfmaq_f32(b, *sum, a);
        }
    }
    black_box(sums);
    n_rounds * N_SUMS * 4 * 2
}
