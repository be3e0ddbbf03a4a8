//! What attention keeps of positions: a vector per head and position, in one of several kinds.
//!
//! **Invariant:** sized at creation for every position of a context; what is put is rounded once,
//! and read back and saved as it was kept. Knows no layers or sessions.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use moeflux_io::AlignedBytes;
use moeflux_kernels::{CodeShape, Kept, KeptRows, Matrix, MatrixLayout, round_to_f16};

use crate::ops::KvKind;

/// Kernels take sixteen rows of codes at a time: a table of fewer would be copied for each call.
const CODE_ROWS_MIN: usize = 16;

/// A vector per head and position, for every position of a context.
///
/// A head's positions lie side by side: attention reads one head after another, and memory that
/// follows itself is read in half the time of pieces that lie apart.
#[derive(Debug)]
pub(crate) struct KvTable {
    kind: KvKind,
    n_heads: usize,
    head_dim: usize,
    /// Positions there is room for.
    n_rows: usize,
    /// Bytes of one head of one position, in each part.
    part_bytes: [usize; 3],
    /// Values or codes, scales, biases; each `[n_heads, n_rows, part_bytes]`. The system hands
    /// pages out when they are first written: a long context costs nothing until it is used.
    parts: Box<[AlignedBytes; 3]>,
}

impl KvTable {
    /// Zeros, or `None` if there is no room.
    #[must_use]
    pub(crate) fn zeroed(
        kind: KvKind,
        (n_heads, head_dim): (usize, usize),
        context: usize,
    ) -> Option<Self> {
        let n_rows = if kind == KvKind::Codes { context.max(CODE_ROWS_MIN) } else { context };
        let part_bytes = kind.part_bytes(head_dim);
        let part = |n_bytes: usize| {
            AlignedBytes::zeroed(n_heads.checked_mul(n_rows)?.checked_mul(n_bytes)?)
        };
        let [values, scales, biases] = part_bytes;
        let parts = Box::new([part(values)?, part(scales)?, part(biases)?]);
        Some(Self { kind, n_heads, head_dim, n_rows, part_bytes, parts })
    }

    /// Heads, and values of one head of a position.
    #[must_use]
    pub(crate) const fn shape(&self) -> (usize, usize) {
        (self.n_heads, self.head_dim)
    }

    /// How codes lie, if that is what is kept.
    #[must_use]
    pub(crate) fn code_shape(&self) -> Option<CodeShape> {
        (self.kind == KvKind::Codes).then(|| CodeShape::of(self.head_dim))
    }

    /// One head of some positions.
    #[must_use]
    pub(crate) fn rows(&self, head_idx: usize, positions: &Range<usize>) -> KeptRows<'_> {
        let values = match self.kind {
            KvKind::F32 => Kept::F32(cast_slice(self.part(0, head_idx, positions))),
            KvKind::F16 => Kept::F16(cast_slice(self.part(0, head_idx, positions))),
            KvKind::Codes => {
                Kept::Codes { matrix: self.matrix(head_idx), first_row: positions.start }
            }
        };
        let stride = self.code_shape().map_or(self.head_dim, |shape| shape.n_cols);
        KeptRows { values, n_rows: positions.len(), row_len: self.head_dim, stride }
    }

    /// The codes of one head: a row per position.
    fn matrix(&self, head_idx: usize) -> Matrix<'_> {
        let shape = CodeShape::of(self.head_dim);
        let layout = MatrixLayout { kind: shape.kind(), n_rows: self.n_rows, n_cols: shape.n_cols };
        let [codes, scales, biases] =
            [0, 1, 2].map(|part_idx| self.part(part_idx, head_idx, &(0..self.n_rows)));
        Matrix::new(layout, codes, scales, biases)
    }

    /// Keeps one head of one position.
    pub(crate) fn put(&mut self, head_idx: usize, position: usize, values: &[f32]) {
        let row = position..position + 1;
        let places = [0, 1, 2].map(|part_idx| self.place(part_idx, head_idx, &row));
        let [bytes, scales, biases] = &mut *self.parts;
        let bytes = &mut bytes[places[0].clone()];
        match self.kind {
            KvKind::F32 => cast_slice_mut(bytes).copy_from_slice(values),
            KvKind::F16 => round_to_f16(values, cast_slice_mut(bytes)),
            KvKind::Codes => {
                let factors = [&mut scales[places[1].clone()], &mut biases[places[2].clone()]];
                CodeShape::of(self.head_dim).round(values, bytes, factors);
            }
        }
    }

    /// Bytes of so many positions.
    #[must_use]
    pub(crate) fn n_bytes(&self, n: usize) -> usize {
        n * self.n_heads * self.part_bytes.iter().sum::<usize>()
    }

    /// One part of one head of some positions.
    fn part(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> &[u8] {
        &self.parts[part_idx][self.place(part_idx, head_idx, positions)]
    }

    /// Where that lies.
    fn place(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> Range<usize> {
        assert!(head_idx < self.n_heads, "head {head_idx} of {}", self.n_heads);
        assert!(positions.end <= self.n_rows, "{positions:?} of {}", self.n_rows);
        let place = |position| (head_idx * self.n_rows + position) * self.part_bytes[part_idx];
        place(positions.start)..place(positions.end)
    }

    /// Which part lies where in some positions from `first` as they are saved: `[position, head,
    /// part]`.
    fn pieces(&self, first: usize, n: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let places = (first..first + n).flat_map(|position| {
            (0..self.n_heads).flat_map(move |head_idx| [0, 1, 2].map(|it| (position, head_idx, it)))
        });
        places.map(|(position, head_idx, part_idx)| {
            (part_idx, self.place(part_idx, head_idx, &(position..position + 1)))
        })
    }

    /// Copies so many positions from `first` out.
    pub(crate) fn read(&self, (first, n): (usize, usize), mut target: &mut [u8]) {
        for (part_idx, place) in self.pieces(first, n) {
            let (piece, rest) = target.split_at_mut(place.len());
            piece.copy_from_slice(&self.parts[part_idx][place]);
            target = rest;
        }
    }

    /// Overwrites so many positions from `first`, as [`KvTable::read`] gives them.
    pub(crate) fn write(&mut self, (first, n): (usize, usize), mut source: &[u8]) {
        for position in first..first + n {
            for at in 0..3 * self.n_heads {
                let (head_idx, part_idx) = (at / 3, at % 3);
                let place = self.place(part_idx, head_idx, &(position..position + 1));
                let (piece, rest) = source.split_at(place.len());
                self.parts[part_idx][place].copy_from_slice(piece);
                source = rest;
            }
        }
    }
}
