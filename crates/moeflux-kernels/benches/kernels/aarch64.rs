//! Loops of multiplications for aarch64: enough independent sums to hide every latency.
//!
//! Byte products are inline assembly: their intrinsics are not stable.

use std::arch::aarch64::{int8x16_t, int32x4_t, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vfmaq_f32};
use std::arch::{asm, is_aarch64_feature_detected};
use std::hint::black_box;

use crate::limits::{Operands, PeakLoop};

/// Independent sums: four units with a latency of 4 need 16.
const N_SUMS: usize = 16;

/// The loops that this CPU can run.
pub(crate) fn loops() -> Vec<PeakLoop> {
    let mut loops = vec![PeakLoop { isa: "neon", operands: Operands::F32, run: neon_f32 }];
    if is_aarch64_feature_detected!("dotprod") {
        loops.push(PeakLoop { isa: "dotprod", operands: Operands::Int8, run: dotprod_int8 });
    }
    if is_aarch64_feature_detected!("i8mm") {
        loops.push(PeakLoop { isa: "i8mm", operands: Operands::Int8, run: i8mm_int8 });
    }
    loops
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

/// Writes a loop of one instruction that adds a number of products to a register.
macro_rules! byte_loop {
    ($name:ident, $features:literal, $instruction:literal, $n_products:literal) => {
        #[target_feature(enable = $features)]
        fn $name(n_rounds: usize) -> usize {
            let bytes = vdupq_n_s8(black_box(3));
            let mut sums = [vdupq_n_s32(0); N_SUMS];
            for _ in 0..n_rounds {
                for sum in &mut sums {
                    *sum = step(*sum, bytes);
                }
            }
            black_box(sums);
            return n_rounds * N_SUMS * $n_products * 2;

            #[inline]
            #[target_feature(enable = $features)]
            fn step(mut sum: int32x4_t, bytes: int8x16_t) -> int32x4_t {
                // SAFETY: changes one register; this function has the feature.
                unsafe {
                    asm!(
                        concat!($instruction, " {sum:v}.4s, {bytes:v}.16b, {bytes:v}.16b"),
                        sum = inout(vreg) sum, bytes = in(vreg) bytes,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                sum
            }
        }
    };
}

byte_loop!(dotprod_int8, "neon,dotprod", "sdot", 16);
byte_loop!(i8mm_int8, "neon,i8mm", "usmmla", 32);
