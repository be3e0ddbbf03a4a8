//! Loops of multiplications for x86-64: enough independent sums to hide every latency.
//!
//! Operands stay in registers (an array of sums is unrolled: a closure would be called, as it does
//! not have the features). The compiler must not shorten a loop: the addends change with every
//! round, or are fused operations that it does not analyse.

use std::arch::x86_64::{
    _mm256_add_epi8, _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps,
    _mm256_setzero_si256, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_set1_epi8, _mm512_set1_ps,
    _mm512_setzero_si512,
};
use std::hint::black_box;

use crate::limits::{Operands, PeakLoop};

/// Independent sums: two units with a latency of 5 need 10.
const N_SUMS: usize = 12;

/// The loops that this CPU can run.
pub(crate) fn loops() -> Vec<PeakLoop> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f");
    let (avxvnni, avx512vnni) =
        (is_x86_feature_detected!("avxvnni"), is_x86_feature_detected!("avx512vnni"));
    let (f32, int8) = (Operands::F32, Operands::Int8);
    let all = [
        (avx2, PeakLoop { isa: "avx2", operands: f32, run: avx2_f32 }),
        (avx512, PeakLoop { isa: "avx512", operands: f32, run: avx512_f32 }),
        (avx2, PeakLoop { isa: "avx2", operands: int8, run: avx2_int8 }),
        (avxvnni, PeakLoop { isa: "avxvnni", operands: int8, run: avxvnni_int8 }),
        (avx512vnni, PeakLoop { isa: "avx512vnni", operands: int8, run: avx512vnni_int8 }),
    ];
    all.into_iter().filter(|(is_had, _)| *is_had).map(|(_, it)| it).collect()
}

#[target_feature(enable = "avx2,fma")]
fn avx2_f32(n_rounds: usize) -> usize {
    let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
    let mut sums = [_mm256_set1_ps(0.0); N_SUMS];
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
    n_rounds * N_SUMS * 8 * 2
}

#[target_feature(enable = "avx512f")]
fn avx512_f32(n_rounds: usize) -> usize {
    let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
    let mut sums = [_mm512_set1_ps(0.0); N_SUMS];
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
    n_rounds * N_SUMS * 16 * 2
}

/// Pairs to 16 bits, pairs of these to 32 bits, then the sum: three instructions for 32 products.
/// Factors of one side differ by sum, those of the other by round, or products would be computed
/// once for all; six of each leave all in registers.
#[target_feature(enable = "avx2")]
fn avx2_int8(n_rounds: usize) -> usize {
    const N_SUMS: usize = 6;
    let ones = _mm256_set1_epi16(black_box(1));
    let mut a = [_mm256_setzero_si256(); N_SUMS];
    for (a, factor) in a.iter_mut().zip(1..) {
        *a = _mm256_set1_epi8(black_box(factor));
    }
    let mut b = _mm256_set1_epi8(black_box(5));
    let mut sums = [_mm256_setzero_si256(); N_SUMS];
    for _ in 0..n_rounds {
        b = _mm256_add_epi8(b, ones);
        for (sum, a) in sums.iter_mut().zip(a) {
            let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones);
            *sum = _mm256_add_epi32(*sum, pairs);
        }
    }
    black_box(sums);
    n_rounds * N_SUMS * 32 * 2
}

#[target_feature(enable = "avx2,avxvnni")]
fn avxvnni_int8(n_rounds: usize) -> usize {
    let (a, b) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi8(black_box(5)));
    let mut sums = [_mm256_setzero_si256(); N_SUMS];
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
        }
    }
    black_box(sums);
    n_rounds * N_SUMS * 32 * 2
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn avx512vnni_int8(n_rounds: usize) -> usize {
    let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
    let mut sums = [_mm512_setzero_si512(); N_SUMS];
    for _ in 0..n_rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, a, b);
        }
    }
    black_box(sums);
    n_rounds * N_SUMS * 64 * 2
}
