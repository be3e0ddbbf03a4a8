//! Sixteen lanes of f32: the shape of every sum in this crate.
//!
//! A [`Simd`] is proof that the CPU has an instruction set, and provides its sixteen lanes.
//! **Invariant:** every implementation gives the bits of [`Portable`]; all functions are always
//! inlined into a function that enables the features.

pub(crate) mod fused;
pub(crate) mod rounding;
pub(crate) mod gates;
pub(crate) mod codes;
pub(crate) mod vector;

use crate::lanes::fused::FusedMultiplyAdd as _;
use crate::lanes::rounding::from_f16;

/// Lanes of a sum.
pub(crate) const LANES: usize = 16;

/// One value per lane.
pub(crate) type Lanes = [f32; LANES];

/// Returns the larger value; `b` if they are equal or not comparable.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// An instruction set of this CPU.
pub(crate) trait Simd: Copy {
    /// Sixteen lanes in registers.
    type Vector: Copy;

    /// Four values in a register.
    type Quad: Copy;

    /// Rows of a tile of four picks.
    const TILE_ROWS: usize;

    /// Edge of a square of sums that fits the registers together with its factors: 4 or 2.
    const SQUARE: usize = if Self::TILE_ROWS >= 4 { 4 } else { 2 };

    /// Returns `value` in every lane.
    fn splat(self, value: f32) -> Self::Vector;

    /// Loads lanes from memory.
    fn load(self, lanes: &Lanes) -> Self::Vector;

    /// Stores lanes to memory.
    fn store(self, vector: Self::Vector, lanes: &mut Lanes);

    /// Stores lanes to memory that is not read soon: if they fill a cache line, the line is not
    /// read first. Other threads see them after [`Simd::drain`].
    fn store_past_cache(self, vector: Self::Vector, lanes: &mut Lanes);

    /// Waits until non-temporal stores are visible in program order.
    fn drain(self);

    /// Returns `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns `a * b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns `a` if it is larger, else `b`, also if one is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns `fma(a, b, acc)`.
    fn fma(self, a: Self::Vector, b: Self::Vector, acc: Self::Vector) -> Self::Vector;

    /// Returns the sum of each vector's lanes: lane `j` += lane `j + 8`, `j + 4`, `j + 2`, `j + 1`.
    fn reduce4(self, vectors: [Self::Vector; 4]) -> Self::Quad;

    /// Decodes codes: lane `j` is the `BITS` bits of `quads[j / 4]` from bit `BITS * (j % 4)`.
    fn codes<const BITS: u32>(self, quads: [u32; 4]) -> Self::Vector;

    /// Converts unsigned bytes.
    fn bytes(self, bytes: &[u8; LANES]) -> Self::Vector;

    /// Converts the bits of half-precision values.
    fn widened(self, bits: &[u16; LANES]) -> Self::Vector;

    /// Loads four values from memory.
    fn load4(self, values: &[f32; 4]) -> Self::Quad;

    /// Stores four values to memory.
    fn store4(self, quad: Self::Quad) -> [f32; 4];

    /// Returns `fma(a, b, acc)`.
    fn fma4(self, a: Self::Quad, b: Self::Quad, acc: Self::Quad) -> Self::Quad;

    /// Returns `fma(a, b, acc)` of single values: one instruction in a function that enables it.
    #[inline(always)]
    #[expect(clippy::disallowed_methods, reason = "instruction sets have the instruction")]
    fn fma1(self, a: f32, b: f32, acc: f32) -> f32 {
        a.mul_add(b, acc)
    }

    /// Returns the sum of one vector's lanes.
    #[inline(always)]
    fn reduce(self, vector: Self::Vector) -> f32 {
        let zero = self.splat(0.0);
        self.store4(self.reduce4([vector, zero, zero, zero]))[0]
    }
}

/// Pads at most 16 values with zeros.
#[inline(always)]
pub(crate) fn padded(values: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// No instruction set: arrays.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type Vector = Lanes;
    type Quad = [f32; 4];
    const TILE_ROWS: usize = 1;

    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }

    fn load(self, lanes: &Lanes) -> Lanes {
        *lanes
    }

    fn store(self, vector: Lanes, lanes: &mut Lanes) {
        *lanes = vector;
    }

    fn store_past_cache(self, vector: Lanes, lanes: &mut Lanes) {
        *lanes = vector;
    }

    fn drain(self) {}

    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|j| a[j] + b[j])
    }

    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|j| a[j] * b[j])
    }

    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|j| larger(a[j], b[j]))
    }

    fn fma(self, a: Lanes, b: Lanes, acc: Lanes) -> Lanes {
        std::array::from_fn(|j| a[j].fused(b[j], acc[j]))
    }

    fn reduce4(self, vectors: [Lanes; 4]) -> [f32; 4] {
        vectors.map(|lanes| {
            let eight: [f32; 8] = std::array::from_fn(|j| lanes[j] + lanes[j + 8]);
            let four: [f32; 4] = std::array::from_fn(|j| eight[j] + eight[j + 4]);
            (four[0] + four[2]) + (four[1] + four[3])
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a code has at most 8 bits")]
    fn codes<const BITS: u32>(self, quads: [u32; 4]) -> Lanes {
        let mask = (1 << BITS) - 1;
        let shifts = [0, BITS, 2 * BITS, 3 * BITS];
        std::array::from_fn(|j| ((quads[j / 4] >> shifts[j % 4]) & mask) as f32)
    }

    fn bytes(self, bytes: &[u8; LANES]) -> Lanes {
        bytes.map(f32::from)
    }

    fn widened(self, bits: &[u16; LANES]) -> Lanes {
        bits.map(from_f16)
    }

    fn load4(self, values: &[f32; 4]) -> [f32; 4] {
        *values
    }

    fn store4(self, quad: [f32; 4]) -> [f32; 4] {
        quad
    }

    #[inline(always)]
    fn fma1(self, a: f32, b: f32, acc: f32) -> f32 {
        a.fused(b, acc)
    }

    fn fma4(self, a: [f32; 4], b: [f32; 4], acc: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i].fused(b[i], acc[i]))
    }
}

/// Implements [`Simd`] for a token by the free functions of the same names in its module, which
/// enable the token's features.
macro_rules! simd_by_functions {
    (@methods $($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($argument: $kind),*) -> $result {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { $name($($argument),*) }
            }
        )*
    };
    ($token:ty, $vector:ty, $quad:ty, tile rows: $rows:literal) => {
        impl $crate::lanes::Simd for $token {
            type Vector = $vector;
            type Quad = $quad;
            const TILE_ROWS: usize = $rows;

            simd_by_functions! { @methods
                splat(value: f32) -> $vector;
                load(lanes: &Lanes) -> $vector;
                store(vector: $vector, lanes: &mut Lanes) -> ();
                store_past_cache(vector: $vector, lanes: &mut Lanes) -> ();
                drain() -> ();
                add(a: $vector, b: $vector) -> $vector;
                mul(a: $vector, b: $vector) -> $vector;
                max(a: $vector, b: $vector) -> $vector;
                fma(a: $vector, b: $vector, acc: $vector) -> $vector;
                reduce4(vectors: [$vector; 4]) -> $quad;
                bytes(codes: &[u8; LANES]) -> $vector;
                widened(bits: &[u16; LANES]) -> $vector;
                load4(values: &[f32; 4]) -> $quad;
                store4(quad: $quad) -> [f32; 4];
                fma4(a: $quad, b: $quad, acc: $quad) -> $quad;
            }

            #[inline(always)]
            fn codes<const BITS: u32>(self, quads: [u32; 4]) -> $vector {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { codes::<BITS>(quads) }
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use simd_by_functions;
