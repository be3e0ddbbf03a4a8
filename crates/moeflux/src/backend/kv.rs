//! Attention state: a vector per head and position, in one of several storage types.
//!
//! **Invariant:** memory is allocated in pieces of [`PIECE_POSITIONS`] positions, which forks share
//! until one of them writes. Values are rounded once, when put; they are read back and saved as
//! stored. No block that attention reads spans two pieces. Independent of layers and sessions.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use moeflux_io::AlignedBytes;
use moeflux_kernels::{
    BLOCK_POSITIONS, CodeShape, Kept, KeptRows, Matrix, MatrixLayout, round_to_f16,
};

use crate::backend::room::{Booking, Room};
use crate::ops::KvKind;

/// Positions per piece. Reads are as fast as from one contiguous allocation: the runs of a head's
/// consecutive positions are long enough.
pub(crate) const PIECE_POSITIONS: usize = 1024;

const _: () = assert!(PIECE_POSITIONS.is_multiple_of(BLOCK_POSITIONS));

/// Returns the number of positions allocated once a whole context is in use.
#[must_use]
pub(crate) const fn positions_in_pieces(context: usize) -> usize {
    if context <= PIECE_POSITIONS { context } else { context.next_multiple_of(PIECE_POSITIONS) }
}

/// Minimum rows of a piece. Kernels process sixteen rows of codes at a time; a smaller table would
/// be copied on each call.
const CODE_ROWS_MIN: usize = 16;

/// A vector per head and position.
///
/// A head's positions are contiguous: attention reads one head after another, and contiguous memory
/// is read in half the time of scattered memory.
#[derive(Debug)]
pub(crate) struct KvTable {
    kind: KvKind,
    n_heads: usize,
    head_dim: usize,
    /// Positions per piece: fewer for a short context.
    n_piece_rows: usize,
    /// Bytes of one head of one position, for each part.
    part_bytes: [usize; 3],
    pieces: Vec<Arc<Piece>>,
}

/// Memory of consecutive positions.
#[derive(Debug)]
struct Piece {
    /// Values or codes, scales, biases; each `[n_heads, n_piece_rows, part_bytes]`. The system
    /// allocates pages when they are first written.
    parts: [AlignedBytes; 3],
    _booking: Booking,
}

impl KvTable {
    /// Creates a table without memory, for sessions of at most `context` positions.
    #[must_use]
    pub(crate) fn new(kind: KvKind, (n_heads, head_dim): (usize, usize), context: usize) -> Self {
        let n_piece_rows = context.clamp(CODE_ROWS_MIN, PIECE_POSITIONS);
        let part_bytes = kind.part_bytes(head_dim);
        Self { kind, n_heads, head_dim, n_piece_rows, part_bytes, pieces: Vec::new() }
    }

    /// Returns the bytes that [`KvTable::reserve`] would allocate for these positions.
    #[must_use]
    pub(crate) fn missing_bytes(&self, positions: &Range<usize>) -> usize {
        let n_pieces = positions.end.div_ceil(self.n_piece_rows).saturating_sub(self.pieces.len());
        let is_shared = |piece_idx: &usize| Arc::strong_count(&self.pieces[*piece_idx]) > 1;
        let n_shared = self.written(positions).filter(is_shared).count();
        (n_pieces + n_shared) * self.piece_bytes()
    }

    /// Allocates unshared memory for these positions, and memory, possibly shared, for all before
    /// them. Returns `false` if memory is short.
    #[must_use]
    pub(crate) fn reserve(&mut self, positions: &Range<usize>, room: &Arc<Room>) -> bool {
        while self.pieces.len() * self.n_piece_rows < positions.end {
            let Some(piece) = self.zeroed_piece(room) else { return false };
            self.pieces.push(Arc::new(piece));
        }
        self.written(positions).all(|piece_idx| self.own(piece_idx, room))
    }

    /// Returns the existing pieces that cover these positions.
    fn written(&self, positions: &Range<usize>) -> Range<usize> {
        let n_pieces = self.pieces.len();
        let first = (positions.start / self.n_piece_rows).min(n_pieces);
        first..positions.end.div_ceil(self.n_piece_rows).min(n_pieces)
    }

    /// Replaces a piece shared with forks by a copy of this table's own.
    fn own(&mut self, piece_idx: usize, room: &Arc<Room>) -> bool {
        if Arc::get_mut(&mut self.pieces[piece_idx]).is_some() {
            return true;
        }
        let Some(mut copy) = self.zeroed_piece(room) else { return false };
        for (copy, part) in copy.parts.iter_mut().zip(&self.pieces[piece_idx].parts) {
            copy.copy_from_slice(part);
        }
        self.pieces[piece_idx] = Arc::new(copy);
        true
    }

    fn zeroed_piece(&self, room: &Arc<Room>) -> Option<Piece> {
        let part = |n_bytes: usize| {
            AlignedBytes::zeroed(self.n_heads.checked_mul(self.n_piece_rows)?.checked_mul(n_bytes)?)
        };
        let [values, scales, biases] = self.part_bytes;
        let booking = room.book(self.piece_bytes() as u64, &String::new).ok()?;
        Some(Piece { parts: [part(values)?, part(scales)?, part(biases)?], _booking: booking })
    }

    /// Returns a table with the same contents. Both share memory until one of them writes there.
    #[must_use]
    pub(crate) fn fork(&self) -> Self {
        Self { pieces: self.pieces.clone(), ..*self }
    }

    /// Returns the positions that follow these within their piece, before `end` and at most
    /// `n_max`.
    #[must_use]
    pub(crate) fn following(
        &self,
        positions: &Range<usize>,
        end: usize,
        n_max: usize,
    ) -> Range<usize> {
        let piece_end = (positions.end / self.n_piece_rows + 1) * self.n_piece_rows;
        positions.end..end.min(positions.end + n_max).min(piece_end).max(positions.end)
    }

    /// Returns the number of heads, and the values of one head of a position.
    #[must_use]
    pub(crate) const fn shape(&self) -> (usize, usize) {
        (self.n_heads, self.head_dim)
    }

    /// Returns the layout of codes, if codes are stored.
    #[must_use]
    pub(crate) fn code_shape(&self) -> Option<CodeShape> {
        (self.kind == KvKind::Codes).then(|| CodeShape::of(self.head_dim))
    }

    /// Returns one head of some positions, all in one piece.
    #[must_use]
    pub(crate) fn rows(&self, head_idx: usize, positions: &Range<usize>) -> KeptRows<'_> {
        let values = match self.kind {
            KvKind::F32 => Kept::F32(cast_slice(self.part(0, head_idx, positions))),
            KvKind::F16 => Kept::F16(cast_slice(self.part(0, head_idx, positions))),
            KvKind::Codes => Kept::Codes {
                matrix: self.matrix(head_idx, positions.start / self.n_piece_rows),
                first_row: positions.start % self.n_piece_rows,
            },
        };
        let stride = self.code_shape().map_or(self.head_dim, |shape| shape.n_cols);
        KeptRows { values, n_rows: positions.len(), row_len: self.head_dim, stride }
    }

    /// Returns the codes of one head in one piece: a row per position.
    fn matrix(&self, head_idx: usize, piece_idx: usize) -> Matrix<'_> {
        let (shape, n_rows) = (CodeShape::of(self.head_dim), self.n_piece_rows);
        let layout = MatrixLayout { kind: shape.kind(), n_rows, n_cols: shape.n_cols };
        let first = piece_idx * n_rows;
        let [codes, scales, biases] =
            [0, 1, 2].map(|part_idx| self.part(part_idx, head_idx, &(first..first + n_rows)));
        Matrix::new(layout, codes, scales, biases)
    }

    /// Stores one head of one position.
    pub(crate) fn put(&mut self, head_idx: usize, position: usize, values: &[f32]) {
        let row = position..position + 1;
        let places = [0, 1, 2].map(|part_idx| self.place(part_idx, head_idx, &row));
        let (kind, head_dim) = (self.kind, self.head_dim);
        let [bytes, scales, biases] = &mut self.piece_mut(position).parts;
        let bytes = &mut bytes[places[0].clone()];
        match kind {
            KvKind::F32 => cast_slice_mut(bytes).copy_from_slice(values),
            KvKind::F16 => round_to_f16(values, cast_slice_mut(bytes)),
            KvKind::Codes => {
                let factors = [&mut scales[places[1].clone()], &mut biases[places[2].clone()]];
                CodeShape::of(head_dim).round(values, bytes, factors);
            }
        }
    }

    /// Returns the bytes of a piece.
    #[must_use]
    pub(crate) fn piece_bytes(&self) -> usize {
        self.n_bytes(self.n_piece_rows)
    }

    /// Returns the bytes of `n` positions.
    #[must_use]
    pub(crate) fn n_bytes(&self, n: usize) -> usize {
        n * self.n_heads * self.part_bytes.iter().sum::<usize>()
    }

    /// Returns one part of one head of some positions in one piece.
    fn part(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> &[u8] {
        let piece = &self.pieces[positions.start / self.n_piece_rows];
        &piece.parts[part_idx][self.place(part_idx, head_idx, positions)]
    }

    /// Returns the piece of a position, for writing.
    fn piece_mut(&mut self, position: usize) -> &mut Piece {
        let piece = &mut self.pieces[position / self.n_piece_rows];
        Arc::get_mut(piece).expect("what is written has room of its own")
    }

    /// Returns the byte range of some positions within their piece.
    fn place(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> Range<usize> {
        assert!(head_idx < self.n_heads, "head {head_idx} of {}", self.n_heads);
        let first = positions.start % self.n_piece_rows;
        let end = first + positions.len();
        assert!(end <= self.n_piece_rows, "{positions:?} span pieces of {}", self.n_piece_rows);
        let place = |row| (head_idx * self.n_piece_rows + row) * self.part_bytes[part_idx];
        place(first)..place(end)
    }

    /// Yields head and part of one position's state, in the order in which it is saved.
    fn pieces_of_a_position(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..self.n_heads).flat_map(|head_idx| [0, 1, 2].map(|part_idx| (head_idx, part_idx)))
    }

    /// Copies `n` positions from `first` to `target`: `[position, head, part]`.
    pub(crate) fn read(&self, (first, n): (usize, usize), mut target: &mut [u8]) {
        for position in first..first + n {
            for (head_idx, part_idx) in self.pieces_of_a_position() {
                let part = self.part(part_idx, head_idx, &(position..position + 1));
                let (piece, rest) = target.split_at_mut(part.len());
                piece.copy_from_slice(part);
                target = rest;
            }
        }
    }

    /// Overwrites `n` positions from `first`, in the order of [`KvTable::read`].
    pub(crate) fn write(&mut self, (first, n): (usize, usize), mut source: &[u8]) {
        for position in first..first + n {
            for (head_idx, part_idx) in self.pieces_of_a_position() {
                let place = self.place(part_idx, head_idx, &(position..position + 1));
                let (piece, rest) = source.split_at(place.len());
                self.piece_mut(position).parts[part_idx][place].copy_from_slice(piece);
                source = rest;
            }
        }
    }
}
