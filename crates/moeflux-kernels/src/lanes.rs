//! Sixteen lanes of f32: the shape of every sum in this crate.
//!
//! **Invariant:** plain arrays and `f32::mul_add`, always inlined, so that the instantiating
//! function's instruction set decides the code but never the bits.

/// Lanes of a sum.
pub(crate) const LANES: usize = 16;

/// One value per lane.
pub(crate) type Lanes = [f32; LANES];

/// `acc[j] = fma(a[j], b[j], acc[j])`.
#[inline(always)]
pub(crate) fn fma(a: &Lanes, b: &Lanes, acc: &mut Lanes) {
    for j in 0..LANES {
        acc[j] = a[j].mul_add(b[j], acc[j]);
    }
}

/// `acc[j] += a[j]`.
#[inline(always)]
pub(crate) fn add(a: &Lanes, acc: &mut Lanes) {
    for j in 0..LANES {
        acc[j] += a[j];
    }
}

/// The lanes' sum, by halves.
#[inline(always)]
pub(crate) fn reduce(lanes: &Lanes) -> f32 {
    let mut eight = [0.0; 8];
    for j in 0..8 {
        eight[j] = lanes[j] + lanes[j + 8];
    }
    let mut four = [0.0; 4];
    for j in 0..4 {
        four[j] = eight[j] + eight[j + 4];
    }
    let two = [four[0] + four[2], four[1] + four[3]];
    two[0] + two[1]
}

/// At most 16 values, filled up with zeros.
#[inline(always)]
pub(crate) fn padded(values: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}
