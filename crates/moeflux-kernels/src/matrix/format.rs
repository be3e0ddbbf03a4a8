//! Memory layout of a weight matrix: the kinds, their sizes, and a checked view of the bytes.
//!
//! **Invariant:** a [`Matrix`] has exactly the bytes that its [`MatrixLayout`] requires, including
//! interleaved rows of other matrices, so kernels need no further length checks. Bytes may be at
//! any address: files do not pad.

use std::fmt;
use std::ops::Range;

use crate::matrix::blocks::BlockKind;

/// Columns of an FP8 group if scales cover whole rows.
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
    /// Returns the bytes of one value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Storage type of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    /// Floats.
    Float(FloatKind),
    /// Powers of two: a byte is the exponent plus 127, and all ones is NaN.
    E8m0,
}

impl ScaleKind {
    /// Returns the bytes of one scale.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float(float) => float.bytes(),
            Self::E8m0 => 1,
        }
    }
}

/// MLX affine quantisation: `weight = code * scale + bias`, one scale and bias per group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    /// Bits of one code: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Consecutive columns that share a scale and a bias: 32, 64 or 128.
    pub group: u8,
    /// Storage type of scales and biases.
    pub scale: FloatKind,
    /// Source of the biases.
    pub biases: Biases,
}

/// Source of the biases of affine codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Biases {
    /// Stored with the scales.
    Stored,
    /// Implied: the middle code is zero. A bias is `-2^(bits - 1) * scale`, which is exact in f32.
    Implied,
}

impl Affine {
    /// Returns codes with a scale and a bias for each group.
    #[must_use]
    pub const fn new(bits: u8, group: u8, scale: FloatKind) -> Self {
        Self { bits, group, scale, biases: Biases::Stored }
    }

    /// Returns codes with a scale alone, whose middle code is zero.
    #[must_use]
    pub const fn symmetric(bits: u8, group: u8, scale: FloatKind) -> Self {
        Self { bits, group, scale, biases: Biases::Implied }
    }

    /// Returns the factor of scales that gives implied biases.
    #[inline(always)]
    pub(crate) fn implied_factor(self) -> Option<f32> {
        match self.biases {
            Biases::Stored => None,
            Biases::Implied => Some(-f32::from(1_u16 << (self.bits - 1))),
        }
    }

    /// Returns the number of groups in `n_cols` columns, without a division, because kernels call
    /// it often.
    #[inline(always)]
    pub(crate) fn n_groups(self, n_cols: usize) -> usize {
        debug_assert!(self.group.is_power_of_two(), "groups of {}", self.group);
        n_cols >> self.group.trailing_zeros()
    }
}

/// FP8 e4m3 codes: `weight = value * scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8 {
    /// Extent of a scale.
    pub spread: Fp8Spread,
    /// Storage type of scales.
    pub scale: ScaleKind,
}

/// Extent of an FP8 scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Spread {
    /// A block of rows and columns: 32, 64 or 128 of each.
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
    /// The format of DeepSeek V3: an f32 for each 128 x 128.
    pub const DEEPSEEK: Self = Self {
        spread: Fp8Spread::Block { n_rows: 128, n_cols: 128 },
        scale: ScaleKind::Float(FloatKind::F32),
    };

    /// Returns the rows that share a scale.
    #[must_use]
    pub const fn rows_per_scale(self) -> usize {
        match self.spread {
            Fp8Spread::Block { n_rows, .. } => n_rows as usize,
            Fp8Spread::Row => 1,
            Fp8Spread::Matrix => usize::MAX,
        }
    }

    /// Returns the scales across a row of `n_cols` columns.
    #[must_use]
    pub const fn scales_per_row(self, n_cols: usize) -> usize {
        match self.spread {
            Fp8Spread::Block { n_cols: shared, .. } => n_cols.div_ceil(shared as usize),
            Fp8Spread::Row | Fp8Spread::Matrix => 1,
        }
    }

    /// Returns the first row that shares scales with a row, if scales cover whole blocks.
    #[must_use]
    pub const fn first_row_with(self, row_idx: usize) -> usize {
        match self.spread {
            Fp8Spread::Block { n_rows, .. } => row_idx / n_rows as usize * n_rows as usize,
            Fp8Spread::Row | Fp8Spread::Matrix => row_idx,
        }
    }

    /// Returns the columns that make one term of a sum.
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

/// Storage format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixKind {
    /// Plain floating point.
    Float(FloatKind),
    /// FP8 e4m3 codes with scales.
    Fp8(Fp8),
    /// MLX affine codes; each row is one little-endian bit stream.
    Affine(Affine),
    /// Blocks that carry their own scales, one after the other. All bytes are codes, unless the
    /// kind stores its scales separately.
    Block(BlockKind),
}

impl MatrixKind {
    /// Returns the storage type of scales, and of biases if there are any, that are stored
    /// separately from the codes; `None` if there are none.
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

/// Kind and shape of a matrix, which determine its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// Storage format of values.
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
    /// [`LayoutError`] for unsupported bits, groups or blocks, columns that are not whole groups or
    /// blocks, empty matrices, and sizes beyond the address space.
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

    /// Returns the bytes of one row of codes or values.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        match self.kind {
            MatrixKind::Float(float) => self.n_cols * float.bytes(),
            MatrixKind::Fp8(_) => self.n_cols,
            MatrixKind::Affine(affine) => self.n_cols * affine.bits as usize / 8,
            MatrixKind::Block(block) => self.n_cols / block.block_cols() * block.block_bytes(),
        }
    }

    /// Returns the bytes of all codes or values.
    #[must_use]
    pub const fn code_bytes(&self) -> usize {
        self.n_rows * self.row_bytes()
    }

    /// Returns the bytes of all scales; zero if the kind has none.
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

    /// Returns the bytes of the scales of a row of blocks; zero for other kinds.
    #[must_use]
    pub const fn scale_row_bytes(&self) -> usize {
        match self.kind {
            MatrixKind::Block(block) => self.n_cols / block.block_cols() * block.scale_bytes(),
            MatrixKind::Float(_) | MatrixKind::Fp8(_) | MatrixKind::Affine(_) => 0,
        }
    }

    /// Returns the rows of memory from the first row to the last, inclusive, if others are between
    /// them.
    #[must_use]
    pub const fn spanned_rows(&self, row_step: usize) -> usize {
        (self.n_rows - 1) * row_step + 1
    }

    /// Returns the bytes of all biases; zero if the kind has none.
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

    /// Returns the byte ranges of some rows in the codes, the scales and the biases. The range of
    /// scales is widened to whole blocks of rows that share one.
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

    /// Returns the bytes of the whole matrix.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.code_bytes() + self.scale_bytes() + self.bias_bytes()
    }
}

/// Reason why a layout is invalid.
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
    /// More bytes than the address space.
    #[error("a matrix of {n_rows} x {n_cols} does not fit in memory")]
    TooLarge {
        /// Rows.
        n_rows: usize,
        /// Columns.
        n_cols: usize,
    },
    /// Unsupported width of codes.
    #[error("{bits}-bit codes are not supported (2, 3, 4, 5, 6 and 8 are)")]
    Bits {
        /// Requested width.
        bits: u8,
    },
    /// Unsupported group size.
    #[error("groups of {group} are not supported (32, 64 and 128 are)")]
    Group {
        /// Requested size.
        group: u8,
    },
    /// Unsupported size of FP8 blocks.
    #[error("FP8 blocks of {n_rows} x {n_cols} are not supported (32, 64 and 128 are)")]
    Fp8Block {
        /// Rows of a block.
        n_rows: u8,
        /// Columns of a block.
        n_cols: u8,
    },
    /// Rows that are not whole groups.
    #[error("rows of {n_cols} values are not whole groups of {group}")]
    RaggedGroup {
        /// Columns.
        n_cols: usize,
        /// Group size.
        group: u8,
    },
    /// Rows that are not whole blocks.
    #[error("rows of {n_cols} values are not whole {kind} blocks of {}", kind.block_cols())]
    RaggedBlock {
        /// Columns.
        n_cols: usize,
        /// Kind of the blocks.
        kind: BlockKind,
    },
}

/// A matrix in memory: a layout and exactly the bytes it requires.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    layout: MatrixLayout,
    codes: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    /// Distance between rows in memory, in rows.
    row_step: usize,
}

impl<'a> Matrix<'a> {
    /// Creates a view of a matrix whose parts are in memory.
    ///
    /// # Panics
    ///
    /// If the length of a part does not match the layout; the loader has checked them.
    #[must_use]
    pub fn new(layout: MatrixLayout, codes: &'a [u8], scales: &'a [u8], biases: &'a [u8]) -> Self {
        assert_eq!(codes.len(), layout.code_bytes(), "codes of {layout:?}");
        assert_eq!(scales.len(), layout.scale_bytes(), "scales of {layout:?}");
        assert_eq!(biases.len(), layout.bias_bytes(), "biases of {layout:?}");
        Self { layout, codes, scales, biases, row_step: 1 }
    }

    /// Creates a view of every `row_step`-th row of codes and scales, from the first one on. The
    /// last row of these bytes is the last one of the view.
    ///
    /// # Panics
    ///
    /// If `row_step` is 0, the length of a part does not match, or the rows of the kind cannot be
    /// interleaved: only those of blocks and plain floats can.
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

    /// Returns kind and shape.
    #[must_use]
    pub fn layout(&self) -> MatrixLayout {
        self.layout
    }

    /// Returns the distance between rows in memory, in rows: 1, unless rows of others are between
    /// them.
    #[must_use]
    pub fn row_step(&self) -> usize {
        self.row_step
    }

    /// Returns the codes or values, row by row, including interleaved rows.
    #[must_use]
    pub fn codes(&self) -> &'a [u8] {
        self.codes
    }

    /// Returns the scales: per row and group (affine), per block row and block column (FP8), per
    /// row and block (blocks that store them separately), or none.
    #[must_use]
    pub fn scales(&self) -> &'a [u8] {
        self.scales
    }

    /// Returns the biases per row and group (affine), or none.
    #[must_use]
    pub fn biases(&self) -> &'a [u8] {
        self.biases
    }

    /// Returns the codes or values of one row.
    #[must_use]
    pub fn row(&self, row_idx: usize) -> &'a [u8] {
        let row_bytes = self.layout.row_bytes();
        &self.codes[row_idx * self.row_step * row_bytes..][..row_bytes]
    }

    /// Returns the scales of one row of blocks that store them separately; empty for other kinds.
    #[inline(always)]
    pub(crate) fn scale_row(&self, row_idx: usize) -> &'a [u8] {
        let row_bytes = self.layout.scale_row_bytes();
        &self.scales[row_idx * self.row_step * row_bytes..][..row_bytes]
    }
}

/// Returns the columns that make one term of an output's sum.
pub(crate) const fn group_cols(kind: MatrixKind) -> usize {
    match kind {
        MatrixKind::Float(_) | MatrixKind::Block(_) => FLOAT_GROUP,
        MatrixKind::Fp8(fp8) => fp8.group_cols(),
        MatrixKind::Affine(affine) => affine.group as usize,
    }
}
