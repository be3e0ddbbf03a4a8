//! The kinds of blocks that carry their own scales: ggml's, as in GGUF files, and one whose scales
//! are stored beside the codes.

use std::fmt;

/// Storage format of a block of consecutive columns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "the usual names of these kinds")]
pub enum BlockKind {
    /// 4 bits: `d (q - 8)`.
    Q4_0,
    /// 4 bits: `d q + m`.
    Q4_1,
    /// 5 bits: `d (q - 16)`.
    Q5_0,
    /// 5 bits: `d q + m`.
    Q5_1,
    /// 8 bits: `d q`.
    Q8_0,
    /// 2 bits: `d s q - dmin m`, with a scale and a minimum per 16 columns.
    Q2_K,
    /// 3 bits: `d s (q - 4)`, with a scale per 16 columns.
    Q3_K,
    /// 4 bits: `d s q - dmin m`, with a scale and a minimum per 32 columns.
    Q4_K,
    /// 5 bits: `d s q - dmin m`, with a scale and a minimum per 32 columns.
    Q5_K,
    /// 6 bits: `d s (q - 32)`, with a scale per 16 columns.
    Q6_K,
    /// A codebook of eight magnitudes, their signs, and a scale per 32 columns: 2.06 bits.
    IQ2_XXS,
    /// The same with a scale per 16 columns: 2.31 bits.
    IQ2_XS,
    /// The same with a larger codebook: 2.56 bits.
    IQ2_S,
    /// A codebook of four magnitudes, their signs, and a scale per 32 columns: 3.06 bits.
    IQ3_XXS,
    /// The same with a larger codebook: 3.44 bits.
    IQ3_S,
    /// 4 bits: one of sixteen values.
    IQ4_NL,
    /// The same with a scale per 32 columns of a block of 256.
    IQ4_XS,
    /// 4 bits: an e2m1 value times a power of two.
    MXFP4,
    /// The same with the powers of two separate from the codes, and even columns in the lower
    /// halves of bytes: the form published as safetensors.
    MXFP4_APART,
}

/// Properties of a kind.
struct KindProperties {
    name: &'static str,
    cols: usize,
    bytes: usize,
    /// Bytes of a block's scales that are stored separately.
    scale_bytes: usize,
    group: usize,
    has_biases: bool,
}

impl BlockKind {
    /// All kinds.
    pub const ALL: [Self; 19] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::MXFP4_APART,
    ];

    const fn properties(self) -> KindProperties {
        let (name, cols, bytes, group, has_biases) = match self {
            Self::Q4_0 => ("Q4_0", 32, 18, 32, false),
            Self::Q4_1 => ("Q4_1", 32, 20, 32, true),
            Self::Q5_0 => ("Q5_0", 32, 22, 32, false),
            Self::Q5_1 => ("Q5_1", 32, 24, 32, true),
            Self::Q8_0 => ("Q8_0", 32, 34, 32, false),
            Self::Q2_K => ("Q2_K", 256, 84, 16, true),
            Self::Q3_K => ("Q3_K", 256, 110, 16, false),
            Self::Q4_K => ("Q4_K", 256, 144, 32, true),
            Self::Q5_K => ("Q5_K", 256, 176, 32, true),
            Self::Q6_K => ("Q6_K", 256, 210, 16, false),
            Self::IQ2_XXS => ("IQ2_XXS", 256, 66, 32, false),
            Self::IQ2_XS => ("IQ2_XS", 256, 74, 16, false),
            Self::IQ2_S => ("IQ2_S", 256, 82, 16, false),
            Self::IQ3_XXS => ("IQ3_XXS", 256, 98, 32, false),
            Self::IQ3_S => ("IQ3_S", 256, 110, 32, false),
            Self::IQ4_NL => ("IQ4_NL", 32, 18, 32, false),
            Self::IQ4_XS => ("IQ4_XS", 256, 136, 32, false),
            Self::MXFP4 => ("MXFP4", 32, 17, 32, false),
            Self::MXFP4_APART => ("mxfp4", 32, 16, 32, false),
        };
        let scale_bytes = if matches!(self, Self::MXFP4_APART) { 1 } else { 0 };
        KindProperties { name, cols, bytes, scale_bytes, group, has_biases }
    }

    /// Returns the name used by ggml, or in published models.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns the columns of a block; rows are whole blocks.
    #[must_use]
    pub const fn block_cols(self) -> usize {
        self.properties().cols
    }

    /// Returns the bytes of a block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.properties().bytes
    }

    /// Returns the bytes of a block's scales that are stored separately, among the matrix's scales:
    /// e8m0.
    #[must_use]
    pub const fn scale_bytes(self) -> usize {
        self.properties().scale_bytes
    }

    /// Returns the offsets in a block of the factors common to all its scales and biases: f16, or
    /// for MXFP4 one byte, the exponent of a power of two.
    #[must_use]
    pub const fn factors_at(self) -> &'static [usize] {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => &[0, 2],
            Self::Q2_K => &[80, 82],
            Self::Q3_K => &[108],
            Self::Q6_K => &[208],
            Self::MXFP4_APART => &[],
            _ => &[0],
        }
    }

    /// Returns the index of the first block with weights that are NaN or infinite. `bytes` begin
    /// `skipped` bytes after the start of a block.
    #[must_use]
    pub fn first_non_finite(self, skipped: usize, bytes: &[u8]) -> Option<usize> {
        let block_bytes = self.block_bytes();
        // Only the second byte of an f16 matters: it has the bits of the exponent.
        let (byte_at, bits) = if self == Self::MXFP4 { (0, 0xff) } else { (1, 0x7c) };
        let bad_in = |factor_at: &usize| {
            let at = factor_at + byte_at;
            let first_block = skipped.saturating_sub(at).div_ceil(block_bytes);
            let first = first_block * block_bytes + at - skipped;
            let bytes = bytes.get(first..)?.iter().step_by(block_bytes);
            bytes.enumerate().find(|(_, byte)| **byte & bits == bits).map(|(n, _)| first_block + n)
        };
        self.factors_at().iter().filter_map(bad_in).min()
    }

    /// Returns the columns that share a scale: 16 or 32.
    pub(crate) const fn group_cols(self) -> usize {
        self.properties().group
    }

    /// Returns whether a byte has the codes of two adjacent columns.
    pub(crate) const fn is_even_odd(self) -> bool {
        matches!(self, Self::MXFP4_APART)
    }

    /// Returns whether groups have a bias besides their scale.
    pub(crate) const fn has_biases(self) -> bool {
        self.properties().has_biases
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
