//! Sixteen matrix rows at a time: the operations that an instruction set gives to int8 products.
//!
//! **Invariant:** every implementation gives the bits of [`Portable`]: integers are exact, and
//! floats go through [`Simd`].

use crate::codes::{from_bf16, from_f16};
use crate::lanes::{LANES, Lanes, Portable, Simd};

/// Columns that are taken at a time: the smallest group.
pub(crate) const PIECE: usize = 32;

/// Sixteen bytes of each of sixteen rows.
pub(crate) type Pieces<'a> = [&'a [u8; 16]; LANES];

/// A float of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfKind {
    F16,
    Bf16,
}

/// An instruction set that this CPU has, for integers. Lane `r` belongs to row `r`.
pub(crate) trait IntSimd: Simd {
    /// Four codes of each row.
    type Quads: Copy;

    /// An integer per row.
    type Ints: Copy;

    /// Zeros.
    fn no_ints(self) -> Self::Ints;

    /// Bytes `4 i .. 4 i + 4` of each row.
    fn quads(self, pieces: &Pieces<'_>) -> [Self::Quads; 4];

    /// The low and the high half of each byte.
    fn halves(self, quads: Self::Quads) -> [Self::Quads; 2];

    /// Codes from memory, row by row.
    fn load_quads(self, quads: &[u8; 4 * LANES]) -> Self::Quads;

    /// Codes to memory, row by row.
    fn store_quads(self, quads: Self::Quads, target: &mut [u8; 4 * LANES]);

    /// `acc + sum of codes * x` over a piece. Codes have at most 4 bits unless `WIDE`.
    fn dot_quads<const WIDE: bool>(
        self,
        codes: &[Self::Quads; 8],
        x: &[i8; PIECE],
        acc: Self::Ints,
    ) -> Self::Ints;

    /// Integers below 2^24, exactly.
    fn floats(self, ints: Self::Ints) -> Self::Vector;

    /// Eight scales and eight biases of each row, to vectors per group.
    fn half_floats(
        self,
        kind: HalfKind,
        scales: &Pieces<'_>,
        biases: &Pieces<'_>,
    ) -> [[Self::Vector; 2]; 8];

    /// Asks for memory that will be read soon. Any address will do.
    fn prefetch(self, address: *const u8);
}

impl IntSimd for Portable {
    type Quads = [[u8; 4]; LANES];
    type Ints = [i32; LANES];

    fn no_ints(self) -> Self::Ints {
        [0; LANES]
    }

    fn quads(self, pieces: &Pieces<'_>) -> [Self::Quads; 4] {
        std::array::from_fn(|i| pieces.map(|piece| piece.as_chunks::<4>().0[i]))
    }

    fn halves(self, quads: Self::Quads) -> [Self::Quads; 2] {
        [quads.map(|quad| quad.map(|it| it & 15)), quads.map(|quad| quad.map(|it| it >> 4))]
    }

    fn load_quads(self, quads: &[u8; 4 * LANES]) -> Self::Quads {
        let (quads, _) = quads.as_chunks::<4>();
        std::array::from_fn(|r| quads[r])
    }

    fn store_quads(self, quads: Self::Quads, target: &mut [u8; 4 * LANES]) {
        target.copy_from_slice(quads.as_flattened());
    }

    fn dot_quads<const WIDE: bool>(
        self,
        codes: &[Self::Quads; 8],
        x: &[i8; PIECE],
        acc: Self::Ints,
    ) -> Self::Ints {
        let (x, _) = x.as_chunks::<4>();
        std::array::from_fn(|r| {
            let products = codes.iter().zip(x).flat_map(|(codes, x)| codes[r].iter().zip(x));
            acc[r] + products.map(|(&code, &x)| i32::from(code) * i32::from(x)).sum::<i32>()
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^24")]
    fn floats(self, ints: Self::Ints) -> Lanes {
        ints.map(|it| it as f32)
    }

    fn half_floats(
        self,
        kind: HalfKind,
        scales: &Pieces<'_>,
        biases: &Pieces<'_>,
    ) -> [[Lanes; 2]; 8] {
        let float = |bits| match kind {
            HalfKind::F16 => from_f16(bits),
            HalfKind::Bf16 => from_bf16(bits),
        };
        std::array::from_fn(|g| {
            [scales, biases]
                .map(|rows| rows.map(|row| float(u16::from_le_bytes(row.as_chunks::<2>().0[g]))))
        })
    }

    fn prefetch(self, _: *const u8) {}
}

/// Implements [`IntSimd`] for a token by the free functions of the same names in its module, which
/// enable the token's features.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! int_simd_by_functions {
    (@methods $($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($argument: $kind),*) -> $result {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { $name($($argument),*) }
            }
        )*
    };
    ($token:ty, $quads:ty, $ints:ty) => {
        impl $crate::int8::IntSimd for $token {
            type Quads = $quads;
            type Ints = $ints;

            int_simd_by_functions! { @methods
                no_ints() -> $ints;
                quads(pieces: &$crate::int8::Pieces<'_>) -> [$quads; 4];
                halves(quads: $quads) -> [$quads; 2];
                load_quads(quads: &[u8; 64]) -> $quads;
                store_quads(quads: $quads, target: &mut [u8; 64]) -> ();
                floats(ints: $ints) -> Self::Vector;
                prefetch(address: *const u8) -> ();
            }

            #[inline(always)]
            fn dot_quads<const WIDE: bool>(
                self,
                codes: &[$quads; 8],
                x: &[i8; $crate::int8::PIECE],
                acc: $ints,
            ) -> $ints {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { dot_quads::<WIDE>(codes, x, acc) }
            }

            #[inline(always)]
            fn half_floats(
                self,
                kind: $crate::int8::HalfKind,
                scales: &$crate::int8::Pieces<'_>,
                biases: &$crate::int8::Pieces<'_>,
            ) -> [[Self::Vector; 2]; 8] {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { half_floats(kind, scales, biases) }
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use int_simd_by_functions;
