//! Operations of an instruction set for int8 products, on sixteen matrix rows at a time.
//!
//! **Invariant:** every implementation gives the bits of [`Portable`]: integers are exact, and
//! floats go through [`Simd`].

use crate::lanes::rounding::{from_bf16, from_f16};
use crate::lanes::{LANES, Lanes, Portable, Simd};
use crate::matrix::blocks::half_power;

/// Columns processed at a time: the smallest group.
pub(crate) const PIECE: usize = 32;

/// Columns whose 4-bit codes fill a cache line, the unit of memory transfers.
pub(crate) const LINE_COLS: usize = 4 * PIECE;

/// Sixteen bytes of each of sixteen rows.
pub(crate) type RowPieces<'a> = [&'a [u8; 16]; LANES];

/// Codes in memory: four of each row.
pub(crate) type StoredQuads = [u8; 4 * LANES];

/// A float of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfKind {
    F16,
    Bf16,
}

/// An instruction set of this CPU, for integers. Lane `r` belongs to row `r`.
///
/// Operations are small, so that the compiler always inlines them into a function that enables the
/// features; their combinations are written here once.
pub(crate) trait IntSimd: Simd {
    /// Four bytes of each row.
    type Quads: Copy;

    /// An integer per row.
    type Ints: Copy;

    /// Accumulator of products, for at most one piece.
    type Accumulator: Copy;

    /// Accumulator of the products of one row, before rows are combined.
    type LineProducts: Copy;

    /// Whether the table repacks several rows of activations into strips, which its products then
    /// use. Sums may then cover any number of pieces, and codes of any width are treated as wide.
    const TAKES_STRIPS: bool = false;

    /// Whether vectors are worthwhile for unpacking blocks that carry their own scales.
    const TAKES_BLOCKS: bool = true;

    /// Sixteen rows up to this size are prefetched into the first-level cache, which has room for
    /// them beside the next sixteen.
    const NEAR_BYTES_MAX: usize = 8 << 10;

    /// Loads sixteen bytes of rows `r`, `r + 4`, `r + 8`, `r + 12`, for an `r` below 4.
    fn gather(self, pieces: [&[u8; 16]; 4]) -> Self::Quads;

    /// Transposes four gathered registers to bytes `4 i .. 4 i + 4` of all rows.
    fn transpose(self, gathered: [Self::Quads; 4]) -> [Self::Quads; 4];

    /// Interleaves two gathered registers, 16-bit values of the first below those of the second:
    /// returns the first four of each row, and the last four.
    fn interleave(self, low: Self::Quads, high: Self::Quads) -> [Self::Quads; 2];

    /// Converts the floats in the lower and the upper halves of 32-bit words.
    fn half_floats(self, kind: HalfKind, words: Self::Quads) -> [Self::Vector; 2];

    /// Returns the low half of each byte.
    fn low_halves(self, quads: Self::Quads) -> Self::Quads;

    /// Returns the high half of each byte.
    fn high_halves(self, quads: Self::Quads) -> Self::Quads;

    /// Shifts each byte right by `right`, then left by `left`, and masks it. One of the shifts is
    /// zero, and `mask` excludes bits from other bytes.
    fn field(self, quads: Self::Quads, right: u32, left: u32, mask: u8) -> Self::Quads;

    /// Returns the bitwise or.
    fn either(self, a: Self::Quads, b: Self::Quads) -> Self::Quads;

    /// Flips the bits of `bits` in each byte.
    fn flip(self, quads: Self::Quads, bits: u8) -> Self::Quads;

    /// Looks up each byte, all below 16, in a table.
    fn look_up(self, table: &[u8; 16], quads: Self::Quads) -> Self::Quads;

    /// Shifts each word right by `right`, masks its lowest bits, at most 23, and converts them to
    /// floats.
    fn field_floats(self, words: Self::Quads, right: u32, mask: i32) -> Self::Vector;

    /// Returns half of the powers of two that bytes encode: the byte of each word from bit `right`
    /// on.
    fn half_powers(self, words: Self::Quads, right: u32) -> Self::Vector;

    /// Loads codes from memory, row by row.
    fn load_quads(self, quads: &StoredQuads) -> Self::Quads;

    /// Stores codes to memory, row by row.
    fn store_quads(self, quads: Self::Quads, target: &mut StoredQuads);

    /// Returns zeros.
    fn no_ints(self) -> Self::Ints;

    /// Begins the sums of a piece that is to be added to `ints`.
    fn open(self, ints: Self::Ints) -> Self::Accumulator;

    /// Adds products of four codes. Codes have at most 4 bits unless `WIDE`.
    fn add_products<const WIDE: bool>(
        self,
        sums: Self::Accumulator,
        codes: Self::Quads,
        x: [i8; 4],
    ) -> Self::Accumulator;

    /// Returns `ints` plus the products summed since [`IntSimd::open`].
    fn close<const WIDE: bool>(self, ints: Self::Ints, sums: Self::Accumulator) -> Self::Ints;

    /// Returns `a + b`.
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;

    /// Converts integers below 2^24, exactly.
    fn floats(self, ints: Self::Ints) -> Self::Vector;

    /// Reorders values for [`IntSimd::products`].
    fn reorder_values(self, x: &[i8; LINE_COLS], target: &mut [i8; LINE_COLS]);

    /// Multiplies a line of 4-bit codes of one row by reordered values; each piece of columns has
    /// its own lanes.
    fn products(self, line: &[u8; LINE_COLS / 2], x: &[i8; LINE_COLS]) -> Self::LineProducts;

    /// Merges the products of four rows, or of four lines: for each piece, one result after the
    /// other.
    fn merge(self, products: [Self::LineProducts; 4]) -> Self::LineProducts;

    /// Transposes four rows of merged lines: row by row for each piece, per line.
    fn transpose_lines(self, rows: [Self::LineProducts; 4]) -> [Self::LineProducts; 4];

    /// Joins four times four rows of a line: row by row for each piece.
    fn join(self, rows: [Self::LineProducts; 4]) -> [Self::Ints; 4];

    /// Prefetches memory: to the first-level cache if `NEAR`, else to the second-level cache. Any
    /// address is allowed.
    fn prefetch<const NEAR: bool>(self, address: *const u8);

    /// Returns the sums of a line of 4-bit codes of each row times reordered values: row by row for
    /// each piece.
    #[inline(always)]
    fn dot_rows(
        self,
        lines: &[&[u8; LINE_COLS / 2]; LANES],
        x: &[i8; LINE_COLS],
    ) -> [Self::Ints; 4] {
        let mut fours = [self.products(lines[0], x); 4];
        for (i, four) in fours.iter_mut().enumerate() {
            *four = self.merge([
                self.products(lines[4 * i], x),
                self.products(lines[4 * i + 1], x),
                self.products(lines[4 * i + 2], x),
                self.products(lines[4 * i + 3], x),
            ]);
        }
        self.join(fours)
    }

    /// Gathers pieces of rows `r`, `r + 4`, `r + 8`, `r + 12` for each `r` below 4.
    #[inline(always)]
    fn gather_all(self, pieces: &RowPieces<'_>) -> [Self::Quads; 4] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *pieces;
        [
            self.gather([a, e, i, m]),
            self.gather([b, f, j, n]),
            self.gather([c, g, k, o]),
            self.gather([d, h, l, p]),
        ]
    }

    /// Returns bytes `4 i .. 4 i + 4` of each row.
    #[inline(always)]
    fn quads(self, pieces: &RowPieces<'_>) -> [Self::Quads; 4] {
        self.transpose(self.gather_all(pieces))
    }

    /// Combines eight scales and eight biases of each row into words per group: a scale below a
    /// bias.
    #[inline(always)]
    fn scale_words(self, scales: &RowPieces<'_>, biases: &RowPieces<'_>) -> [Self::Quads; 8] {
        let (scales, biases) = (self.gather_all(scales), self.gather_all(biases));
        let [a, b] = self.interleave(scales[0], biases[0]);
        let [c, d] = self.interleave(scales[1], biases[1]);
        let [e, f] = self.interleave(scales[2], biases[2]);
        let [g, h] = self.interleave(scales[3], biases[3]);
        let [a, c, e, g] = self.transpose([a, c, e, g]);
        let [b, d, f, h] = self.transpose([b, d, f, h]);
        [a, c, e, g, b, d, f, h]
    }

    /// Returns `ints + sum of codes * x` over a piece, as one chain.
    #[inline(always)]
    fn dot<const WIDE: bool>(
        self,
        codes: &[Self::Quads; 8],
        x: &[i8; PIECE],
        ints: Self::Ints,
    ) -> Self::Ints {
        let (x, _) = x.as_chunks::<4>();
        let mut sums = self.open(ints);
        for i in 0..8 {
            sums = self.add_products::<WIDE>(sums, codes[i], x[i]);
        }
        self.close::<WIDE>(ints, sums)
    }

    /// Returns `ints + sum of codes * x` over half a piece.
    #[inline(always)]
    fn dot_half<const WIDE: bool>(
        self,
        codes: &[Self::Quads; 4],
        x: &[i8; PIECE / 2],
        ints: Self::Ints,
    ) -> Self::Ints {
        let (x, _) = x.as_chunks::<4>();
        let mut sums = self.open(ints);
        for i in 0..4 {
            sums = self.add_products::<WIDE>(sums, codes[i], x[i]);
        }
        self.close::<WIDE>(ints, sums)
    }

    /// Stores the codes of half a piece in the form required by [`IntSimd::dot_stored`].
    #[inline(always)]
    fn store_codes(self, codes: &[Self::Quads; 4], target: &mut [StoredQuads; 4]) {
        for (codes, target) in codes.iter().zip(target) {
            self.store_quads(*codes, target);
        }
    }

    /// Returns the sums of stored codes times each of `x`, over the pieces of a group, or over half
    /// a piece.
    #[inline(always)]
    fn dot_stored<const WIDE: bool, const PICKS: usize>(
        self,
        stored: &[StoredQuads],
        x: &[&[i8]; PICKS],
    ) -> [Self::Ints; PICKS] {
        let mut ints = [self.no_ints(); PICKS];
        let (pieces, half) = stored.as_chunks::<8>();
        if let ([], Some(stored)) = (pieces, half.first_chunk::<4>()) {
            let mut codes = [self.load_quads(&stored[0]); 4];
            for i in 1..4 {
                codes[i] = self.load_quads(&stored[i]);
            }
            for t in 0..PICKS {
                let (x, _) = x[t].as_chunks::<{ PIECE / 2 }>();
                ints[t] = self.dot_half::<WIDE>(&codes, &x[0], ints[t]);
            }
            return ints;
        }
        for (p, stored) in pieces.iter().enumerate() {
            let mut codes = [self.load_quads(&stored[0]); 8];
            for i in 1..8 {
                codes[i] = self.load_quads(&stored[i]);
            }
            for t in 0..PICKS {
                let (x, _) = x[t][p * PIECE..][..PIECE].as_chunks::<PIECE>();
                ints[t] = self.dot::<WIDE>(&codes, &x[0], ints[t]);
            }
        }
        ints
    }
}

impl IntSimd for Portable {
    /// In row order, also in gathered registers.
    type Quads = [u8; 4 * LANES];
    type Ints = [i32; LANES];
    type Accumulator = [i32; LANES];

    /// One sum per row, for each piece.
    type LineProducts = [[i32; 4]; 4];

    const TAKES_BLOCKS: bool = false;

    fn gather(self, pieces: [&[u8; 16]; 4]) -> Self::Quads {
        let mut quads = [0; 4 * LANES];
        for (quads, piece) in quads.chunks_exact_mut(16).zip(pieces) {
            quads.copy_from_slice(piece);
        }
        quads
    }

    fn transpose(self, gathered: [Self::Quads; 4]) -> [Self::Quads; 4] {
        let mut quads = [[0; 4 * LANES]; 4];
        for (i, quads) in quads.iter_mut().enumerate() {
            for (row, quad) in quads.chunks_exact_mut(4).enumerate() {
                quad.copy_from_slice(&gathered[row % 4][row / 4 * 16 + 4 * i..][..4]);
            }
        }
        quads
    }

    fn interleave(self, low: Self::Quads, high: Self::Quads) -> [Self::Quads; 2] {
        [0, 8].map(|first| {
            let mut words = [0; 4 * LANES];
            for (i, word) in words.chunks_exact_mut(4).enumerate() {
                let at = i / 4 * 16 + first + i % 4 * 2;
                word[..2].copy_from_slice(&low[at..][..2]);
                word[2..].copy_from_slice(&high[at..][..2]);
            }
            words
        })
    }

    fn half_floats(self, kind: HalfKind, words: Self::Quads) -> [Lanes; 2] {
        let float = |bits: [u8; 2]| match kind {
            HalfKind::F16 => from_f16(u16::from_le_bytes(bits)),
            HalfKind::Bf16 => from_bf16(u16::from_le_bytes(bits)),
        };
        let (words, _) = words.as_chunks::<4>();
        [0, 2].map(|at| std::array::from_fn(|r| float([words[r][at], words[r][at + 1]])))
    }

    fn low_halves(self, quads: Self::Quads) -> Self::Quads {
        quads.map(|it| it & 15)
    }

    fn high_halves(self, quads: Self::Quads) -> Self::Quads {
        quads.map(|it| it >> 4)
    }

    fn field(self, quads: Self::Quads, right: u32, left: u32, mask: u8) -> Self::Quads {
        quads.map(|it| it >> right << left & mask)
    }

    fn either(self, a: Self::Quads, b: Self::Quads) -> Self::Quads {
        std::array::from_fn(|i| a[i] | b[i])
    }

    fn flip(self, quads: Self::Quads, bits: u8) -> Self::Quads {
        quads.map(|it| it ^ bits)
    }

    fn look_up(self, table: &[u8; 16], quads: Self::Quads) -> Self::Quads {
        quads.map(|it| table[usize::from(it)])
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 23 bits")]
    fn field_floats(self, words: Self::Quads, right: u32, mask: i32) -> Lanes {
        let (words, _) = words.as_chunks::<4>();
        let field = |word: [u8; 4]| (u32::from_le_bytes(word) >> right).cast_signed() & mask;
        std::array::from_fn(|r| field(words[r]) as f32)
    }

    fn half_powers(self, words: Self::Quads, right: u32) -> Lanes {
        let (words, _) = words.as_chunks::<4>();
        std::array::from_fn(|r| half_power(words[r][right as usize / 8]))
    }

    fn load_quads(self, quads: &StoredQuads) -> Self::Quads {
        *quads
    }

    fn store_quads(self, quads: Self::Quads, target: &mut StoredQuads) {
        *target = quads;
    }

    fn no_ints(self) -> Self::Ints {
        [0; LANES]
    }

    fn open(self, ints: Self::Ints) -> Self::Accumulator {
        ints
    }

    fn add_products<const WIDE: bool>(
        self,
        sums: Self::Accumulator,
        codes: Self::Quads,
        x: [i8; 4],
    ) -> Self::Accumulator {
        let (codes, _) = codes.as_chunks::<4>();
        std::array::from_fn(|r| {
            let products = codes[r].iter().zip(x).map(|(&code, x)| i32::from(code) * i32::from(x));
            sums[r] + products.sum::<i32>()
        })
    }

    fn close<const WIDE: bool>(self, _: Self::Ints, sums: Self::Accumulator) -> Self::Ints {
        sums
    }

    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|r| a[r] + b[r])
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^24")]
    fn floats(self, ints: Self::Ints) -> Lanes {
        ints.map(|it| it as f32)
    }

    fn reorder_values(self, x: &[i8; LINE_COLS], target: &mut [i8; LINE_COLS]) {
        *target = *x;
    }

    fn products(self, line: &[u8; LINE_COLS / 2], x: &[i8; LINE_COLS]) -> [[i32; 4]; 4] {
        let (words, x) = (line.as_chunks::<4>().0, x.as_chunks::<8>().0);
        let mut pieces = [[0; 4]; 4];
        for (i, (word, x)) in words.iter().zip(x).enumerate() {
            let low = word.iter().zip(&x[..4]).map(|(&it, &x)| i32::from(it & 15) * i32::from(x));
            let high = word.iter().zip(&x[4..]).map(|(&it, &x)| i32::from(it >> 4) * i32::from(x));
            pieces[i / 4][0] += low.sum::<i32>() + high.sum::<i32>();
        }
        pieces
    }

    fn merge(self, products: [[[i32; 4]; 4]; 4]) -> [[i32; 4]; 4] {
        std::array::from_fn(|piece| std::array::from_fn(|i| products[i][piece][0]))
    }

    fn transpose_lines(self, rows: [[[i32; 4]; 4]; 4]) -> [[[i32; 4]; 4]; 4] {
        std::array::from_fn(|line| {
            std::array::from_fn(|piece| std::array::from_fn(|r| rows[r][piece][line]))
        })
    }

    fn join(self, rows: [[[i32; 4]; 4]; 4]) -> [[i32; LANES]; 4] {
        std::array::from_fn(|piece| std::array::from_fn(|r| rows[r / 4][piece][r % 4]))
    }

    fn prefetch<const NEAR: bool>(self, _: *const u8) {}
}

/// Implements [`IntSimd`] for a token by the free functions of the same names in its module, which
/// enable the token's features. The functions for tiles may be overridden.
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
    (
        $token:ty, $quads:ty, $ints:ty, $sums:ty, $products:ty
        $(, tiles: $store_codes:ident, $dot_stored:ident)?
        $(, strips: $takes_strips:literal)?
        $(, near bytes: $near_bytes_max:literal)?
    ) => {
        impl $crate::int8::IntSimd for $token {
            type Quads = $quads;
            type Ints = $ints;
            type Accumulator = $sums;
            type LineProducts = $products;

            $(const TAKES_STRIPS: bool = $takes_strips;)?
            $(const NEAR_BYTES_MAX: usize = $near_bytes_max;)?

            int_simd_by_functions! { @methods
                gather(pieces: [&[u8; 16]; 4]) -> $quads;
                transpose(gathered: [$quads; 4]) -> [$quads; 4];
                interleave(low: $quads, high: $quads) -> [$quads; 2];
                half_floats(kind: $crate::int8::HalfKind, words: $quads) -> [Self::Vector; 2];
                low_halves(quads: $quads) -> $quads;
                high_halves(quads: $quads) -> $quads;
                field(quads: $quads, right: u32, left: u32, mask: u8) -> $quads;
                either(a: $quads, b: $quads) -> $quads;
                flip(quads: $quads, bits: u8) -> $quads;
                look_up(table: &[u8; 16], quads: $quads) -> $quads;
                field_floats(words: $quads, right: u32, mask: i32) -> Self::Vector;
                half_powers(words: $quads, right: u32) -> Self::Vector;
                load_quads(quads: &[u8; 64]) -> $quads;
                store_quads(quads: $quads, target: &mut [u8; 64]) -> ();
                no_ints() -> $ints;
                open(ints: $ints) -> $sums;
                add_ints(a: $ints, b: $ints) -> $ints;
                floats(ints: $ints) -> Self::Vector;
                reorder_values(x: &[i8; 128], target: &mut [i8; 128]) -> ();
                products(line: &[u8; 64], x: &[i8; 128]) -> $products;
                merge(products: [$products; 4]) -> $products;
                transpose_lines(rows: [$products; 4]) -> [$products; 4];
                join(rows: [$products; 4]) -> [$ints; 4];
            }

            #[inline(always)]
            fn add_products<const WIDE: bool>(
                self,
                sums: $sums,
                codes: $quads,
                x: [i8; 4],
            ) -> $sums {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { add_products::<WIDE>(sums, codes, x) }
            }

            #[inline(always)]
            fn prefetch<const NEAR: bool>(self, address: *const u8) {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { prefetch::<NEAR>(address) }
            }

            #[inline(always)]
            fn close<const WIDE: bool>(self, ints: $ints, sums: $sums) -> $ints {
                // SAFETY: a token exists only where the CPU has its features.
                unsafe { close::<WIDE>(ints, sums) }
            }

            $(
                #[inline(always)]
                fn store_codes(
                    self,
                    codes: &[$quads; 4],
                    target: &mut [$crate::int8::StoredQuads; 4],
                ) {
                    // SAFETY: a token exists only where the CPU has its features.
                    unsafe { $store_codes(codes, target) }
                }

                #[inline(always)]
                fn dot_stored<const WIDE: bool, const PICKS: usize>(
                    self,
                    stored: &[$crate::int8::StoredQuads],
                    x: &[&[i8]; PICKS],
                ) -> [$ints; PICKS] {
                    // SAFETY: a token exists only where the CPU has its features.
                    unsafe { $dot_stored::<WIDE, PICKS>(stored, x) }
                }
            )?
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use int_simd_by_functions;
