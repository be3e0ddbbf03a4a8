//! AVX-512 VNNI: products of bytes summed in one instruction. Everything else is AVX-512.
//!
//! **Invariant:** an [`Avx512Vnni`] exists only inside the functions of this table.

use std::arch::x86_64::{__m128, __m512, __m512i, _mm512_dpbusd_epi32};

use super::integers::{
    add_ints, broadcast, either, field, field_floats, flip, floats, gather, half_floats,
    half_powers, high_halves, interleave, join, line_codes, line_values, load_quads, look_up,
    low_halves, merge, no_ints, prefetch, reorder_values, store_quads, transpose,
    transpose as transpose_lines,
};
use super::strips::{StripOrder, pack_strips};
use super::{
    KERNELS, add, bytes, codes, drain, fma, fma4, load, load4, max, mul, reduce4, splat, store,
    store_past_cache, store4, unpack_blocks, widened,
};
use crate::int8::{IntProduct, IntRows, IntScratch, RepackedRows, int_simd_by_functions, matmul};
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::KernelTable;

static TABLE: KernelTable =
    KernelTable { name: "avx512vnni", repack_inputs, int_matmul, ..KERNELS };

pub(in crate::x86_64) fn table() -> Option<&'static KernelTable> {
    let is_available = super::table().is_some() && is_x86_feature_detected!("avx512vnni");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512Vnni(());

impl Avx512Vnni {
    /// Returns the proof, for functions that enable the same features.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn of_table() -> Self {
        Self(())
    }
}

simd_by_functions!(Avx512Vnni, __m512, __m128, tile rows: 4);
// With one prefetched line per load, the list of outstanding requests of the first-level cache is
// full: a Zen 4 then reads at half speed.
int_simd_by_functions!(
    Avx512Vnni, __m512i, __m512i, __m512i, __m512i, strips: true, near bytes: 0
);

/// Packs several rows. A single row is multiplied by the codes as they are read, without repacking.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn repack_inputs(rows: &IntRows, picks: &[usize], repacked: &mut RepackedRows) {
    if picks.len() > 1 {
        pack_strips(rows, picks, StripOrder::AsGiven, repacked);
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn int_matmul(product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
    matmul(Avx512Vnni(()), (product, unpack_blocks), scratch, out);
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn open(ints: __m512i) -> __m512i {
    ints
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_products<const WIDE: bool>(sums: __m512i, codes: __m512i, x: [i8; 4]) -> __m512i {
    _mm512_dpbusd_epi32(sums, codes, broadcast(x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn products(line: &[u8; 64], x: &[i8; 128]) -> __m512i {
    let ([low, high], [even, odd]) = (line_codes(line), line_values(x));
    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(no_ints(), low, even), high, odd)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn close<const WIDE: bool>(_: __m512i, sums: __m512i) -> __m512i {
    sums
}
