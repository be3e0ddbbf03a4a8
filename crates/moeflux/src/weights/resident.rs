//! Matrices and vectors in owned memory.
//!
//! **Invariant:** parts of a matrix start at multiples of 64 bytes; vectors are f32, finite or as
//! stored.

use std::ops::Range;

use moeflux_io::AlignedBytes;
use moeflux_kernels::{Matrix, MatrixLayout};

use crate::error::{Error, Remedy, Result};
use crate::ids::{MatrixId, VectorId};

/// Parts start on a cache line, and so do rows of common widths.
const PART_ALIGN: usize = 64;

/// Offsets of a matrix's parts from the first byte of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixSpan {
    /// Kind and shape.
    pub layout: MatrixLayout,
    /// The rows stored there that belong to this matrix.
    pub rows: RowStride,
    /// First byte of the codes, including those of other rows.
    pub codes_at: usize,
    /// First byte of the scales.
    pub scales_at: usize,
    /// First byte of the biases.
    pub biases_at: usize,
}

/// Rows at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStride {
    /// The first row.
    pub first: usize,
    /// Distance from one row to the next: 1, unless rows of another matrix lie in between.
    pub step: usize,
}

impl RowStride {
    /// Consecutive rows.
    pub const ALL: Self = Self { first: 0, step: 1 };
    /// Rows 0, 2, 4 and so on.
    pub const EVEN: Self = Self { first: 0, step: 2 };
    /// Rows 1, 3, 5 and so on.
    pub const ODD: Self = Self { first: 1, step: 2 };
}

impl MatrixSpan {
    fn new(layout: MatrixLayout, codes_at: usize) -> Self {
        let scales_at = (codes_at + layout.code_bytes()).next_multiple_of(PART_ALIGN);
        let biases_at = (scales_at + layout.scale_bytes()).next_multiple_of(PART_ALIGN);
        Self { layout, rows: RowStride::ALL, codes_at, scales_at, biases_at }
    }

    fn end(&self) -> usize {
        (self.biases_at + self.layout.bias_bytes()).next_multiple_of(PART_ALIGN)
    }

    /// Returns the span of all rows stored there: those of this matrix and of the one interleaved
    /// with it.
    pub(super) fn whole(&self) -> Self {
        let n_rows = self.layout.n_rows * self.rows.step;
        let layout = MatrixLayout { n_rows, ..self.layout };
        Self { layout, rows: RowStride::ALL, ..*self }
    }

    fn view<'a>(&self, bytes: &'a [u8]) -> Matrix<'a> {
        let layout = self.layout;
        if self.rows == RowStride::ALL {
            return Matrix::new(
                layout,
                &bytes[self.codes_at..][..layout.code_bytes()],
                &bytes[self.scales_at..][..layout.scale_bytes()],
                &bytes[self.biases_at..][..layout.bias_bytes()],
            );
        }
        let RowStride { first, step } = self.rows;
        let spanned = |at: usize, row_bytes: usize| {
            &bytes[at + first * row_bytes..][..layout.spanned_rows(step) * row_bytes]
        };
        let codes = spanned(self.codes_at, layout.row_bytes());
        let scales = spanned(self.scales_at, layout.scale_row_bytes());
        Matrix::of_every(step, layout, codes, scales)
    }
}

/// A matrix in memory of its own.
#[derive(Debug)]
pub struct OwnedMatrix {
    span: MatrixSpan,
    bytes: AlignedBytes,
}

impl OwnedMatrix {
    /// Creates a matrix of zero bytes, to be filled.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory cannot be allocated.
    pub fn zeroed(layout: MatrixLayout) -> Result<Self> {
        let span = MatrixSpan::new(layout, 0);
        let bytes = AlignedBytes::zeroed(span.end()).ok_or_else(|| {
            let what = format!("a resident matrix of {} x {}", layout.n_rows, layout.n_cols);
            Error::no_room(what, span.end() as u64, Remedy::SmallerModel)
        })?;
        Ok(Self { span, bytes })
    }

    /// Returns codes, scales and biases, for writing.
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut [u8], &mut [u8]) {
        let layout = self.span.layout;
        let (head, biases) = self.bytes.split_at_mut(self.span.biases_at);
        let (codes, scales) = head.split_at_mut(self.span.scales_at);
        (
            &mut codes[..layout.code_bytes()],
            &mut scales[..layout.scale_bytes()],
            &mut biases[..layout.bias_bytes()],
        )
    }

    /// Returns the matrix.
    #[must_use]
    pub fn view(&self) -> Matrix<'_> {
        self.span.view(&self.bytes)
    }
}

/// Layout of the matrices of one routed expert in one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayout {
    /// `[inner, hidden]`.
    pub gate: MatrixSpan,
    /// `[inner, hidden]`.
    pub up: MatrixSpan,
    /// `[hidden, inner]`.
    pub down: MatrixSpan,
}

impl ExpertLayout {
    /// Creates a layout of gate, up and down, in that order.
    #[must_use]
    pub fn new(gate: MatrixLayout, up: MatrixLayout, down: MatrixLayout) -> Self {
        let gate = MatrixSpan::new(gate, 0);
        let up = MatrixSpan::new(up, gate.end());
        let down = MatrixSpan::new(down, up.end());
        Self { gate, up, down }
    }

    /// Creates a layout of one matrix whose even rows are gate's and whose odd rows are up's,
    /// followed by down. Scales and codes of its kind must belong to single rows.
    ///
    /// # Panics
    ///
    /// If the number of rows is odd.
    #[must_use]
    pub fn interleaved(gate_up: MatrixLayout, down: MatrixLayout) -> Self {
        assert!(gate_up.n_rows.is_multiple_of(2), "as many rows of up as of gate");
        let both = MatrixSpan::new(gate_up, 0);
        let layout = MatrixLayout { n_rows: gate_up.n_rows / 2, ..gate_up };
        let gate = MatrixSpan { layout, rows: RowStride::EVEN, ..both };
        let up = MatrixSpan { layout, rows: RowStride::ODD, ..both };
        Self { gate, up, down: MatrixSpan::new(down, both.end()) }
    }

    /// Returns whether rows of gate and up are interleaved.
    #[must_use]
    pub fn is_interleaved(&self) -> bool {
        self.gate.rows != RowStride::ALL
    }

    /// Returns the matrices that are stored in one piece: gate, up and down, or gate and up
    /// together.
    fn stored(&self) -> impl Iterator<Item = MatrixSpan> + use<> {
        let Self { gate, up, down } = *self;
        let up = if self.is_interleaved() { None } else { Some(up) };
        [Some(gate.whole()), up, Some(down)].into_iter().flatten()
    }

    /// Returns this layout with its parts at `starts`, in the order of the record.
    ///
    /// # Panics
    ///
    /// If there are fewer starts than parts.
    #[must_use]
    pub fn moved(&self, starts: &mut impl Iterator<Item = usize>) -> Self {
        let mut next = |n_bytes: usize| match n_bytes {
            0 => 0,
            _ => starts.next().expect("every part has a place"),
        };
        let mut moved = |span: MatrixSpan| MatrixSpan {
            codes_at: next(span.layout.code_bytes()),
            scales_at: next(span.layout.scale_bytes()),
            biases_at: next(span.layout.bias_bytes()),
            ..span
        };
        let both = moved(self.gate.whole());
        let gate = MatrixSpan { layout: self.gate.layout, rows: self.gate.rows, ..both };
        let up = if self.is_interleaved() {
            MatrixSpan { rows: self.up.rows, ..gate }
        } else {
            moved(self.up)
        };
        Self { gate, up, down: moved(self.down) }
    }

    /// Returns the byte ranges of its non-empty parts, in the order of the record.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.stored().flat_map(|span| {
            let layout = span.layout;
            let parts = [
                (span.codes_at, layout.code_bytes()),
                (span.scales_at, layout.scale_bytes()),
                (span.biases_at, layout.bias_bytes()),
            ];
            let parts = parts.into_iter().filter(|(_, n_bytes)| *n_bytes > 0);
            parts.map(|(at, n_bytes)| at..at + n_bytes)
        })
    }

    /// Returns the bytes of a record in memory.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.down.end()
    }

    /// Returns the stored bytes of an expert, without padding.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        [self.gate, self.up, self.down].iter().map(|span| span.layout.total_bytes() as u64).sum()
    }

    /// Returns the expert in a record.
    #[must_use]
    pub fn view<'a>(&self, record: &'a [u8]) -> ExpertView<'a> {
        ExpertView {
            gate: self.gate.view(record),
            up: self.up.view(record),
            down: self.down.view(record),
        }
    }
}

/// The matrices of one routed expert in memory.
#[derive(Clone, Copy, Debug)]
pub struct ExpertView<'a> {
    /// `[inner, hidden]`.
    pub gate: Matrix<'a>,
    /// `[inner, hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden, inner]`.
    pub down: Matrix<'a>,
}

/// The resident weights, which every token uses.
#[derive(Debug, Default)]
pub struct Weights {
    matrices: Vec<OwnedMatrix>,
    vectors: Vec<Vec<f32>>,
}

impl Weights {
    /// Adds a matrix.
    pub fn push_matrix(&mut self, matrix: OwnedMatrix) -> MatrixId {
        self.matrices.push(matrix);
        MatrixId(self.matrices.len() - 1)
    }

    /// Adds a vector.
    pub fn push_vector(&mut self, vector: Vec<f32>) -> VectorId {
        self.vectors.push(vector);
        VectorId(self.vectors.len() - 1)
    }

    /// Returns the numbers of matrices and vectors.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.matrices.len(), self.vectors.len())
    }

    /// Returns a matrix.
    #[must_use]
    pub fn matrix(&self, id: MatrixId) -> Matrix<'_> {
        self.matrices[id.0].view()
    }

    /// Returns a vector.
    #[must_use]
    pub fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0]
    }
}
