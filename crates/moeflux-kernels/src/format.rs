//! How a weight matrix lies in memory: the kinds, their sizes, and a checked view of the bytes.
//!
//! **Invariant:** a [`Matrix`] has exactly the bytes its [`MatrixLayout`] asks for, and those of
//! the rows between its own, so kernels need no further length checks. Bytes may lie at any
//! address: files do not pad.

use std::fmt;
use std::ops::Range;

use crate::blocks::BlockKind;

/// Columns of a group of FP8 where scales hold for whole rows.
const FP8_GROUP: usize = 128;

/// Columns of a group of plain floats, and of weights of blocks.
const FLOAT_GROUP: usize = 64;

/// A floating-point storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatKind {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `F32`.
    Bf16,
}

impl FloatKind {
    /// Bytes of one value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    /// Floats.
    Float(FloatKind),
    /// Powers of two: a byte is the exponent with 127 added, and all ones is no number.
    E8m0,
}

impl ScaleKind {
    /// Bytes of one scale.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float(float) => float.bytes(),
            Self::E8m0 => 1,
        }
    }
}

/// Affine quantisation, as MLX has it: `weight = code * scale + bias`, one scale and bias per
/// group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    /// Bits of one code: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Consecutive columns that share a scale and a bias: 32, 64 or 128.
    pub group: u8,
    /// How scales and biases are stored.
    pub scale: FloatKind,
    /// Where biases come from.
    pub biases: Biases,
}

/// Where the biases of affine codes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Biases {
    /// They are stored.
    Stored,
    /// They make the middle code zero: `-2^(bits - 1) * scale`, which is exact in f32.
    Implied,
}

impl Affine {
    /// Codes with a scale and a bias for each group.
    #[must_use]
    pub const fn new(bits: u8, group: u8, scale: FloatKind) -> Self {
        Self { bits, group, scale, biases: Biases::Stored }
    }

    /// Codes with a scale alone, of which the middle one is zero.
    #[must_use]
    pub const fn symmetric(bits: u8, group: u8, scale: FloatKind) -> Self {
        Self { bits, group, scale, biases: Biases::Implied }
    }

    /// What scales are multiplied with for biases that are implied.
    #[inline(always)]
    pub(crate) fn implied_factor(self) -> Option<f32> {
        match self.biases {
            Biases::Stored => None,
            Biases::Implied => Some(-f32::from(1_u16 << (self.bits - 1))),
        }
    }

    /// Groups of so many columns: without a division, for kernels ask often.
    #[inline(always)]
    pub(crate) fn n_groups(self, n_cols: usize) -> usize {
        debug_assert!(self.group.is_power_of_two(), "groups of {}", self.group);
        n_cols >> self.group.trailing_zeros()
    }
}

/// FP8 e4m3 codes: `weight = value * scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8 {
    /// What shares a scale.
    pub spread: Fp8Spread,
    /// How scales are stored.
    pub scale: ScaleKind,
}

/// What shares a scale of FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Spread {
    /// So many rows and columns: 32, 64 or 128 of each.
    Block {
        /// Rows.
        n_rows: u8,
        /// Columns.
        n_cols: u8,
    },
    /// A row.
    Row,
    /// The whole matrix.
    Matrix,
}

impl Fp8 {
    /// As DeepSeek V3 is published: an f32 for each 128 x 128.
    pub const DEEPSEEK: Self = Self {
        spread: Fp8Spread::Block { n_rows: 128, n_cols: 128 },
        scale: ScaleKind::Float(FloatKind::F32),
    };

    /// Rows under one scale.
    #[must_use]
    pub const fn rows_per_scale(self) -> usize {
        match self.spread {
            Fp8Spread::Block { n_rows, .. } => n_rows as usize,
            Fp8Spread::Row => 1,
            Fp8Spread::Matrix => usize::MAX,
        }
    }

    /// Scales beside each other, for rows of so many columns.
    #[must_use]
    pub const fn scales_per_row(self, n_cols: usize) -> usize {
        match self.spread {
            Fp8Spread::Block { n_cols: shared, .. } => n_cols.div_ceil(shared as usize),
            Fp8Spread::Row | Fp8Spread::Matrix => 1,
        }
    }

    /// The first row of those that share scales with a row, where these hold for whole blocks.
    #[must_use]
    pub const fn first_row_with(self, row_idx: usize) -> usize {
        match self.spread {
            Fp8Spread::Block { n_rows, .. } => row_idx / n_rows as usize * n_rows as usize,
            Fp8Spread::Row | Fp8Spread::Matrix => row_idx,
        }
    }

    /// Columns that make one term of a sum.
    const fn group_cols(self) -> usize {
        match self.spread {
            Fp8Spread::Block { n_cols, .. } => n_cols as usize,
            Fp8Spread::Row | Fp8Spread::Matrix => FP8_GROUP,
        }
    }
}

impl fmt::Display for Fp8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spread {
            Fp8Spread::Block { n_rows: 128, n_cols: 128 } => f.write_str("fp8")?,
            Fp8Spread::Block { n_rows, n_cols } => write!(f, "fp8-{n_rows}x{n_cols}")?,
            Fp8Spread::Row => f.write_str("fp8-row")?,
            Fp8Spread::Matrix => f.write_str("fp8-matrix")?,
        }
        match self.scale {
            ScaleKind::Float(FloatKind::F32) => Ok(()),
            ScaleKind::Float(FloatKind::F16) => f.write_str("-f16"),
            ScaleKind::Float(FloatKind::Bf16) => f.write_str("-bf16"),
            ScaleKind::E8m0 => f.write_str("-e8m0"),
        }
    }
}

/// How the values of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixKind {
    /// Plain floating point.
    Float(FloatKind),
    /// FP8 e4m3 codes under scales.
    Fp8(Fp8),
    /// MLX affine codes; each row is one little-endian bit stream.
    Affine(Affine),
    /// Blocks that carry their own scales, one after the other; all bytes are codes, unless the
    /// blocks of a kind have their scales apart.
    Block(BlockKind),
}

impl MatrixKind {
    /// How scales, and biases where there are some, are stored apart from the codes; `None` if
    /// there are none.
    #[must_use]
    pub const fn scale_kind(self) -> Option<ScaleKind> {
        match self {
            Self::Float(_) => None,
            Self::Fp8(fp8) => Some(fp8.scale),
            Self::Affine(affine) => Some(ScaleKind::Float(affine.scale)),
            Self::Block(block) if block.scale_bytes() > 0 => Some(ScaleKind::E8m0),
            Self::Block(_) => None,
        }
    }
}

impl fmt::Display for MatrixKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(FloatKind::F32) => f.write_str("f32"),
            Self::Float(FloatKind::F16) => f.write_str("f16"),
            Self::Float(FloatKind::Bf16) => f.write_str("bf16"),
            Self::Fp8(fp8) => write!(f, "{fp8}"),
            Self::Affine(Affine { bits, group, biases, .. }) => match biases {
                Biases::Stored => write!(f, "q{bits}g{group}"),
                Biases::Implied => write!(f, "int{bits}g{group}"),
            },
            Self::Block(block) => f.write_str(block.name()),
        }
    }
}

/// Kind and shape of a matrix: all that its size in bytes follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// How values are stored.
    pub kind: MatrixKind,
    /// Outputs of the product.
    pub n_rows: usize,
    /// Inputs of the product.
    pub n_cols: usize,
}

impl MatrixLayout {
    /// Checks that the kind can hold rows of this length.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] for bits or groups that do not exist, columns that are not whole groups,
    /// empty matrices, and sizes beyond the address space.
    pub fn new(kind: MatrixKind, n_rows: usize, n_cols: usize) -> Result<Self, LayoutError> {
        let layout = Self { kind, n_rows, n_cols };
        if n_rows == 0 || n_cols == 0 {
            return Err(LayoutError::Empty { n_rows, n_cols });
        }
        let is_sane = n_cols
            .checked_mul(n_rows)
            .and_then(|n_values| n_values.checked_mul(8))
            .is_some_and(|n_bytes| isize::try_from(n_bytes).is_ok());
        if !is_sane {
            return Err(LayoutError::TooLarge { n_rows, n_cols });
        }
        if let MatrixKind::Affine(Affine { bits, group, .. }) = kind {
            if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
                return Err(LayoutError::Bits { bits });
            }
            if !matches!(group, 32 | 64 | 128) {
                return Err(LayoutError::Group { group });
            }
            if !n_cols.is_multiple_of(usize::from(group)) {
                return Err(LayoutError::RaggedGroup { n_cols, group });
            }
        }
        if let MatrixKind::Fp8(Fp8 { spread: Fp8Spread::Block { n_rows, n_cols }, .. }) = kind
            && ![n_rows, n_cols].into_iter().all(|n| matches!(n, 32 | 64 | 128))
        {
            return Err(LayoutError::Fp8Block { n_rows, n_cols });
        }
        if let MatrixKind::Block(kind) = kind
            && !n_cols.is_multiple_of(kind.block_cols())
        {
            return Err(LayoutError::RaggedBlock { n_cols, kind });
        }
        Ok(layout)
    }

    /// Bytes of one row of codes or values.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        match self.kind {
            MatrixKind::Float(float) => self.n_cols * float.bytes(),
            MatrixKind::Fp8(_) => self.n_cols,
            MatrixKind::Affine(affine) => self.n_cols * affine.bits as usize / 8,
            MatrixKind::Block(block) => self.n_cols / block.block_cols() * block.block_bytes(),
        }
    }

    /// Bytes of all codes or values.
    #[must_use]
    pub const fn code_bytes(&self) -> usize {
        self.n_rows * self.row_bytes()
    }

    /// Bytes of all scales; zero where the kind has none.
    #[must_use]
    pub const fn scale_bytes(&self) -> usize {
        match self.kind {
            MatrixKind::Float(_) => 0,
            MatrixKind::Block(block) => {
                self.n_rows * (self.n_cols / block.block_cols()) * block.scale_bytes()
            }
            MatrixKind::Fp8(fp8) => {
                let n_scales = self.n_rows.div_ceil(fp8.rows_per_scale());
                n_scales * fp8.scales_per_row(self.n_cols) * fp8.scale.bytes()
            }
            MatrixKind::Affine(affine) => {
                self.n_rows * (self.n_cols / affine.group as usize) * affine.scale.bytes()
            }
        }
    }

    /// Bytes of the scales of a row of blocks; zero for kinds whose scales are not of blocks.
    #[must_use]
    pub const fn scale_row_bytes(&self) -> usize {
        match self.kind {
            MatrixKind::Block(block) => self.n_cols / block.block_cols() * block.scale_bytes(),
            MatrixKind::Float(_) | MatrixKind::Fp8(_) | MatrixKind::Affine(_) => 0,
        }
    }

    /// Rows of memory from the first row to the last, both included, where others lie between.
    #[must_use]
    pub const fn spanned_rows(&self, row_step: usize) -> usize {
        (self.n_rows - 1) * row_step + 1
    }

    /// Bytes of all biases; zero where the kind has none.
    #[must_use]
    pub const fn bias_bytes(&self) -> usize {
        match self.kind {
            MatrixKind::Float(_) | MatrixKind::Fp8(_) | MatrixKind::Block(_) => 0,
            MatrixKind::Affine(affine) => match affine.biases {
                Biases::Stored => self.scale_bytes(),
                Biases::Implied => 0,
            },
        }
    }

    /// Which of all bytes of codes, of scales and of biases some rows have. Scales are also those
    /// of the rows that share one with these.
    #[must_use]
    pub fn bytes_of_rows(&self, rows: &Range<usize>) -> [Range<usize>; 3] {
        let one = Self { n_rows: 1, ..*self };
        let rows_per_scale = match self.kind {
            MatrixKind::Fp8(fp8) => fp8.rows_per_scale(),
            MatrixKind::Float(_) | MatrixKind::Affine(_) | MatrixKind::Block(_) => 1,
        };
        let sharing = rows.start / rows_per_scale..rows.end.div_ceil(rows_per_scale);
        let bytes = |units: &Range<usize>, n_bytes| units.start * n_bytes..units.end * n_bytes;
        [
            bytes(rows, self.row_bytes()),
            bytes(&sharing, one.scale_bytes()),
            bytes(&sharing, one.bias_bytes()),
        ]
    }

    /// Bytes of the whole matrix.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.code_bytes() + self.scale_bytes() + self.bias_bytes()
    }
}

/// A layout that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No rows or no columns.
    #[error("a matrix of {n_rows} x {n_cols} has no values")]
    Empty {
        /// Rows.
        n_rows: usize,
        /// Columns.
        n_cols: usize,
    },
    /// More bytes than can be addressed.
    #[error("a matrix of {n_rows} x {n_cols} does not fit in memory")]
    TooLarge {
        /// Rows.
        n_rows: usize,
        /// Columns.
        n_cols: usize,
    },
    /// Codes of a width that does not exist.
    #[error("{bits}-bit codes are not supported (2, 3, 4, 5, 6 and 8 are)")]
    Bits {
        /// Width asked for.
        bits: u8,
    },
    /// Groups of a size that does not exist.
    #[error("groups of {group} are not supported (32, 64 and 128 are)")]
    Group {
        /// Size asked for.
        group: u8,
    },
    /// Blocks of FP8 of a size that does not exist.
    #[error("FP8 blocks of {n_rows} x {n_cols} are not supported (32, 64 and 128 are)")]
    Fp8Block {
        /// Rows of a block.
        n_rows: u8,
        /// Columns of a block.
        n_cols: u8,
    },
    /// The last group of a row would be cut.
    #[error("rows of {n_cols} values are not whole groups of {group}")]
    RaggedGroup {
        /// Columns.
        n_cols: usize,
        /// Group size.
        group: u8,
    },
    /// The last block of a row would be cut.
    #[error("rows of {n_cols} values are not whole {kind} blocks of {}", kind.block_cols())]
    RaggedBlock {
        /// Columns.
        n_cols: usize,
        /// What rows consist of.
        kind: BlockKind,
    },
}

/// A matrix in memory: a layout and exactly the bytes it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    layout: MatrixLayout,
    codes: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    /// From one row to the next in memory, in rows.
    row_step: usize,
}

impl<'a> Matrix<'a> {
    /// A view of a matrix whose parts were read to memory.
    ///
    /// # Panics
    ///
    /// If a part has another length than the layout asks for: the loader checked them.
    #[must_use]
    pub fn new(layout: MatrixLayout, codes: &'a [u8], scales: &'a [u8], biases: &'a [u8]) -> Self {
        assert_eq!(codes.len(), layout.code_bytes(), "codes of {layout:?}");
        assert_eq!(scales.len(), layout.scale_bytes(), "scales of {layout:?}");
        assert_eq!(biases.len(), layout.bias_bytes(), "biases of {layout:?}");
        Self { layout, codes, scales, biases, row_step: 1 }
    }

    /// A view of every `row_step`-th row of codes and scales, from the first one on, of which the
    /// last one is the last row of these bytes.
    ///
    /// # Panics
    ///
    /// If a part has another length, or the kind is one whose rows cannot be taken apart: only
    /// blocks and plain floats can.
    #[must_use]
    pub fn of_every(
        row_step: usize,
        layout: MatrixLayout,
        codes: &'a [u8],
        scales: &'a [u8],
    ) -> Self {
        let has_plain_rows = matches!(layout.kind, MatrixKind::Float(_) | MatrixKind::Block(_));
        assert!(has_plain_rows || row_step == 1, "rows of {layout:?} stand together");
        assert!(row_step > 0, "each row is another");
        let n_spanned = layout.spanned_rows(row_step);
        assert_eq!(codes.len(), n_spanned * layout.row_bytes(), "codes of {layout:?}");
        assert_eq!(scales.len(), n_spanned * layout.scale_row_bytes(), "scales of {layout:?}");
        Self { layout, codes, scales, biases: &[], row_step }
    }

    /// Kind and shape.
    #[must_use]
    pub fn layout(&self) -> MatrixLayout {
        self.layout
    }

    /// How many rows of memory there are from one row to the next: 1, unless rows of others lie
    /// between them.
    #[must_use]
    pub fn row_step(&self) -> usize {
        self.row_step
    }

    /// Codes or values, row by row, and those of rows that lie between.
    #[must_use]
    pub fn codes(&self) -> &'a [u8] {
        self.codes
    }

    /// Scales: per row and group (affine), per block row and block column (FP8), per row and block
    /// (blocks that have them apart), or none.
    #[must_use]
    pub fn scales(&self) -> &'a [u8] {
        self.scales
    }

    /// Biases per row and group (affine), or none.
    #[must_use]
    pub fn biases(&self) -> &'a [u8] {
        self.biases
    }

    /// The codes or values of one row.
    #[must_use]
    pub fn row(&self, row_idx: usize) -> &'a [u8] {
        let row_bytes = self.layout.row_bytes();
        &self.codes[row_idx * self.row_step * row_bytes..][..row_bytes]
    }

    /// The scales of one row of blocks that have them apart; nothing for other kinds.
    #[inline(always)]
    pub(crate) fn scale_row(&self, row_idx: usize) -> &'a [u8] {
        let row_bytes = self.layout.scale_row_bytes();
        &self.scales[row_idx * self.row_step * row_bytes..][..row_bytes]
    }
}

/// Columns that make one term of an output's sum.
pub(crate) const fn group_cols(kind: MatrixKind) -> usize {
    match kind {
        MatrixKind::Float(_) | MatrixKind::Block(_) => FLOAT_GROUP,
        MatrixKind::Fp8(fp8) => fp8.group_cols(),
        MatrixKind::Affine(affine) => affine.group as usize,
    }
}
