//! Decoding of a block into the integers, scales and biases that make up its weights.
//!
//! A weight is `code * scale`, or `code * scale + bias`. **Invariant:** scales and biases are exact
//! products, and so is `code * scale`: an f32 holds each, for any bytes of the block.

use crate::lanes::rounding::from_f16;
use crate::matrix::blocks::grids;
use crate::matrix::blocks::kind::BlockKind;

/// Columns of the largest block.
pub(crate) const BLOCK_COLS_MAX: usize = 256;

/// Upper bound on the groups of a block.
pub(crate) const BLOCK_GROUPS_MAX: usize = BLOCK_COLS_MAX / 16;

/// The sixteen values of IQ4.
pub const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the sixteen values of e2m1.
pub const E2M1_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Magnitudes used by the codebooks of IQ2.
const IQ2_MAGNITUDES: [u8; 4] = [8, 25, 43, 0];
const IQ3_XXS_MAGNITUDES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_S_MAGNITUDES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

static IQ2_XXS: [[u8; 8]; 256] = eights(grids::IQ2_XXS);

/// The codebook of IQ2_XXS, eight magnitudes per word.
pub static IQ2_XXS_GRID: [u64; 256] = {
    let (grid, mut words) = (eights(grids::IQ2_XXS), [0; 256]);
    let mut at = 0;
    while at < 256 {
        words[at] = u64::from_le_bytes(grid[at]);
        at += 1;
    }
    words
};

/// The codebook of IQ3_XXS, four magnitudes per word.
pub static IQ3_XXS_GRID: [u32; 256] = {
    let (grid, mut words) = (fours(grids::IQ3_XXS, IQ3_XXS_MAGNITUDES), [0; 256]);
    let mut at = 0;
    while at < 256 {
        words[at] = u32::from_le_bytes(grid[at]);
        at += 1;
    }
    words
};

/// For each combination of seven signs, eight bytes, one per column: all ones if it is negative.
/// The eighth sign makes the number of negative columns even.
pub(crate) static SIGNS: [u64; 128] = {
    let mut words = [0; 128];
    let mut at = 0_usize;
    while at < 128 {
        let signs = at as u64 | (at.count_ones() as u64 & 1) << 7;
        let mut col = 0;
        while col < 8 {
            words[at] |= ((signs >> col & 1) * 0xff) << (8 * col);
            col += 1;
        }
        at += 1;
    }
    words
};

static IQ2_XS: [[u8; 8]; 512] = eights(grids::IQ2_XS);
static IQ2_S: [[u8; 8]; 1024] = eights(grids::IQ2_S);
static IQ3_XXS: [[u8; 4]; 256] = fours(grids::IQ3_XXS, IQ3_XXS_MAGNITUDES);
static IQ3_S: [[u8; 4]; 512] = fours(grids::IQ3_S, IQ3_S_MAGNITUDES);

/// Unpacks a codebook of eight 2-bit indices of magnitudes per word.
const fn eights<const N: usize>(packed: [u16; N]) -> [[u8; 8]; N] {
    let mut grid = [[0; 8]; N];
    let mut at = 0;
    while at < 8 * N {
        grid[at / 8][at % 8] = IQ2_MAGNITUDES[(packed[at / 8] >> (at % 8 * 2) & 3) as usize];
        at += 1;
    }
    grid
}

/// Unpacks a codebook of four 3-bit indices of magnitudes per word.
const fn fours<const N: usize>(packed: [u16; N], magnitudes: [u8; 8]) -> [[u8; 4]; N] {
    let mut grid = [[0; 4]; N];
    let mut at = 0;
    while at < 4 * N {
        grid[at / 4][at % 4] = magnitudes[(packed[at / 4] >> (at % 4 * 3) & 7) as usize];
        at += 1;
    }
    grid
}

/// The parts of one block; small blocks use only the first columns and groups.
#[derive(Clone, Debug)]
pub(crate) struct DecodedBlock {
    pub(crate) codes: [i8; BLOCK_COLS_MAX],
    /// Per group of [`BlockKind::group_cols`] columns.
    pub(crate) scales: [f32; BLOCK_GROUPS_MAX],
    /// Per group; zeros if the kind has none.
    pub(crate) biases: [f32; BLOCK_GROUPS_MAX],
}

impl DecodedBlock {
    pub(crate) const ZEROS: Self = Self {
        codes: [0; BLOCK_COLS_MAX],
        scales: [0.0; BLOCK_GROUPS_MAX],
        biases: [0.0; BLOCK_GROUPS_MAX],
    };

    /// Decodes a block of exactly [`BlockKind::block_bytes`] bytes. Its scales are the
    /// [`BlockKind::scale_bytes`] bytes of `scales`, or inside the block.
    pub(crate) fn decode(&mut self, kind: BlockKind, block: &[u8], scales: &[u8]) {
        assert_eq!(block.len(), kind.block_bytes(), "a block of {kind}");
        assert_eq!(scales.len(), kind.scale_bytes(), "scales of a block of {kind}");
        self.decode_scales(kind, block, scales);
        match kind {
            BlockKind::Q4_0 => self.nibbles(&block[2..], 16, |q| q - 8),
            BlockKind::Q4_1 => self.nibbles(&block[4..], 16, |q| q),
            BlockKind::Q5_0 => self.five_bits(&block[6..], 16, |col| bit(&block[2..], col), 16),
            BlockKind::Q5_1 => self.five_bits(&block[8..], 16, |col| bit(&block[4..], col), 0),
            BlockKind::Q8_0 => {
                self.codes.iter_mut().zip(&block[2..]).for_each(|(it, q)| *it = q.cast_signed());
            }
            BlockKind::Q2_K => self.each(|col| pair(&block[16..80], col)),
            BlockKind::Q3_K => {
                self.each(|col| pair(&block[32..96], col) + 4 * high_bit(block, col) - 4);
            }
            BlockKind::Q4_K => self.nibbles(&block[16..], 32, |q| q),
            BlockKind::Q5_K => {
                self.five_bits(&block[48..], 32, |col| high_bit(&block[16..], col), 0);
            }
            BlockKind::Q6_K => {
                self.nibbles(&block[..128], 64, |q| q);
                for (col, code) in self.codes.iter_mut().enumerate() {
                    *code += 16 * pair(&block[128..192], col) - 32;
                }
            }
            BlockKind::IQ4_NL => self.nibbles(&block[2..], 16, iq4),
            BlockKind::IQ4_XS => self.nibbles(&block[8..], 16, iq4),
            BlockKind::MXFP4 => {
                self.nibbles(&block[1..], 16, |q| E2M1_VALUES[usize::from(q.cast_unsigned())]);
            }
            BlockKind::MXFP4_APART => {
                let (pairs, _) = self.codes.as_chunks_mut::<2>();
                for (pair, q) in pairs.iter_mut().zip(block) {
                    *pair = [q & 15, q >> 4].map(|q| E2M1_VALUES[usize::from(q)]);
                }
            }
            BlockKind::IQ2_XXS
            | BlockKind::IQ2_XS
            | BlockKind::IQ2_S
            | BlockKind::IQ3_XXS
            | BlockKind::IQ3_S => self.look_up(kind, block),
        }
    }

    fn each(&mut self, code: impl Fn(usize) -> i8) {
        self.codes.iter_mut().enumerate().for_each(|(col, it)| *it = code(col));
    }

    /// Decodes 4-bit codes: each `half` bytes have the codes of `half` columns in their low bits,
    /// and those of the next `half` columns in their high bits.
    fn nibbles(&mut self, bytes: &[u8], half: usize, value: impl Fn(i8) -> i8) {
        for (codes, bytes) in self.codes.chunks_exact_mut(2 * half).zip(bytes.chunks_exact(half)) {
            let (low, high) = codes.split_at_mut(half);
            low.iter_mut().zip(bytes).for_each(|(it, q)| *it = value((q & 15).cast_signed()));
            high.iter_mut().zip(bytes).for_each(|(it, q)| *it = value((q >> 4).cast_signed()));
        }
    }

    /// Decodes 5-bit codes: the low four bits as [`Self::nibbles`], the fifth by `fifth`.
    fn five_bits(&mut self, bytes: &[u8], half: usize, fifth: impl Fn(usize) -> i8, offset: i8) {
        self.nibbles(bytes, half, |q| q);
        for (col, code) in self.codes[..2 * bytes.len()].iter_mut().enumerate() {
            *code += 16 * fifth(col) - offset;
        }
    }

    /// Decodes the codes of a kind with a codebook.
    fn look_up(&mut self, kind: BlockKind, block: &[u8]) {
        let (eights, _) = self.codes.as_chunks_mut::<8>();
        for (i, codes) in eights.iter_mut().enumerate() {
            let (magnitudes, signs) = match kind {
                BlockKind::IQ2_XXS => {
                    let part = &block[2 + i / 4 * 8..][..8];
                    (IQ2_XXS[usize::from(part[i % 4])], seven_signs(&part[4..], i % 4))
                }
                BlockKind::IQ2_XS => {
                    let word = u16_at(&block[2..], i);
                    let [signs, _] = (word >> 9).to_le_bytes();
                    (IQ2_XS[usize::from(word & 511)], eighth_sign(signs))
                }
                BlockKind::IQ2_S => {
                    let high = block[66 + i / 4] >> (i % 4 * 2) & 3;
                    let index = usize::from(block[2 + i]) | usize::from(high) << 8;
                    (IQ2_S[index], block[34 + i])
                }
                BlockKind::IQ3_XXS => {
                    let fours = [2 * i, 2 * i + 1].map(|k| IQ3_XXS[usize::from(block[2 + k])]);
                    (joined(fours), seven_signs(&block[66 + i / 4 * 4..], i % 4))
                }
                _ => {
                    let fours = [2 * i, 2 * i + 1].map(|k| {
                        let high = usize::from(block[66 + k / 8] >> (k % 8) & 1);
                        IQ3_S[usize::from(block[2 + k]) | high << 8]
                    });
                    (joined(fours), block[74 + i])
                }
            };
            for (k, (code, magnitude)) in codes.iter_mut().zip(magnitudes).enumerate() {
                let magnitude = magnitude.cast_signed();
                *code = if signs >> k & 1 == 0 { magnitude } else { -magnitude };
            }
        }
    }

    /// Decodes the scales and biases.
    fn decode_scales(&mut self, kind: BlockKind, block: &[u8], separate: &[u8]) {
        let half = |at: usize| from_f16(u16_at(&block[at..], 0));
        let first = match kind {
            BlockKind::MXFP4 => half_power(block[0]),
            BlockKind::MXFP4_APART => half_power(separate[0]),
            BlockKind::Q2_K => half(80),
            BlockKind::Q3_K => half(108),
            BlockKind::Q6_K => half(208),
            _ => half(0),
        };
        let (scales, biases) = (&mut self.scales, &mut self.biases);
        match kind {
            BlockKind::Q4_0
            | BlockKind::Q5_0
            | BlockKind::Q8_0
            | BlockKind::IQ4_NL
            | BlockKind::MXFP4
            | BlockKind::MXFP4_APART => scales[0] = first,
            BlockKind::Q4_1 | BlockKind::Q5_1 => (scales[0], biases[0]) = (first, half(2)),
            BlockKind::Q4_K | BlockKind::Q5_K => {
                let least = half(2);
                for g in 0..8 {
                    let [scale, minimum] = six_bits(&block[4..16], g);
                    scales[g] = first * f32::from(scale);
                    biases[g] = -(least * f32::from(minimum));
                }
            }
            BlockKind::Q2_K => {
                let least = half(82);
                for g in 0..16 {
                    scales[g] = first * f32::from(block[g] & 15);
                    biases[g] = -(least * f32::from(block[g] >> 4));
                }
            }
            _ => {
                let n_groups = kind.block_cols() / kind.group_cols();
                for (g, scale) in scales[..n_groups].iter_mut().enumerate() {
                    *scale = first * factor(kind, block, g);
                }
            }
        }
    }
}

/// Returns the ratio of a group's scale to the block's, for kinds without biases.
fn factor(kind: BlockKind, block: &[u8], g: usize) -> f32 {
    // A 4-bit number plus one half.
    let and_half = |nibble: u8| 0.5 + f32::from(nibble);
    match kind {
        BlockKind::Q3_K => {
            let low = block[96 + g % 8] >> (g / 8 * 4) & 15;
            let high = block[104 + g % 4] >> (g / 4 * 2) & 3;
            f32::from(low | high << 4) - 32.0
        }
        BlockKind::Q6_K => f32::from(block[192 + g].cast_signed()),
        BlockKind::IQ4_XS => {
            let high = u16_at(&block[2..], 0) >> (2 * g) & 3;
            f32::from(u16::from(nibble(&block[4..8], g)) | high << 4) - 32.0
        }
        BlockKind::IQ2_XXS => and_half(block[2 + 8 * g + 7] >> 4) * 0.25,
        BlockKind::IQ2_XS => and_half(nibble(&block[66..], g)) * 0.25,
        BlockKind::IQ2_S => and_half(nibble(&block[74..], g)) * 0.25,
        BlockKind::IQ3_XXS => and_half(block[66 + 4 * g + 3] >> 4) * 0.5,
        _ => 1.0 + 2.0 * f32::from(nibble(&block[106..], g)),
    }
}

/// Returns the scale and the minimum of a group of Q4_K or Q5_K.
fn six_bits(packed: &[u8], g: usize) -> [u8; 2] {
    if g < 4 {
        return [packed[g] & 63, packed[g + 4] & 63];
    }
    let low = packed[g + 4];
    [low & 15 | packed[g - 4] >> 6 << 4, low >> 4 | packed[g] >> 6 << 4]
}

/// Returns half of the power of two that an e8m0 encodes; all ones is NaN.
pub(crate) fn half_power(exponent: u8) -> f32 {
    let bits = match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        255 => f32::NAN.to_bits(),
        _ => (u32::from(exponent) - 1) << 23,
    };
    f32::from_bits(bits)
}

/// Returns the power of two that an e8m0 encodes; all ones is NaN.
pub(crate) fn power(exponent: u8) -> f32 {
    let bits = match exponent {
        0 => 0x0040_0000,
        255 => f32::NAN.to_bits(),
        _ => u32::from(exponent) << 23,
    };
    f32::from_bits(bits)
}

fn iq4(q: i8) -> i8 {
    IQ4_VALUES[usize::from(q.cast_unsigned())]
}

/// Returns the 2-bit code of a column. Each 32 bytes have 128 codes: first the lowest two bits of
/// every byte, then the next two.
fn pair(bytes: &[u8], col: usize) -> i8 {
    (bytes[col / 128 * 32 + col % 32] >> (col / 32 % 4 * 2) & 3).cast_signed()
}

/// Returns the high bit of a column's code. 32 bytes have 256 of them: first the lowest bit of
/// every byte, then the next.
fn high_bit(bytes: &[u8], col: usize) -> i8 {
    (bytes[col % 32] >> (col / 32) & 1).cast_signed()
}

fn bit(bytes: &[u8], i: usize) -> i8 {
    (bytes[i / 8] >> (i % 8) & 1).cast_signed()
}

fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

fn u16_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// Returns the signs of eight columns from a word that stores seven for each eight.
fn seven_signs(word: &[u8], i: usize) -> u8 {
    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    let [signs, ..] = (word >> (7 * i) & 127).to_le_bytes();
    eighth_sign(signs)
}

/// Adds the eighth sign, which makes the number of set signs even.
fn eighth_sign(seven: u8) -> u8 {
    seven | u8::from(seven.count_ones() % 2 == 1) << 7
}

fn joined([a, b]: [[u8; 4]; 2]) -> [u8; 8] {
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}
