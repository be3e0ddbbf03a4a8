//! What attention keeps of positions: a vector per head and position, in one of several kinds.
//!
//! **Invariant:** memory comes in pieces of [`PIECE_POSITIONS`] positions, which forks share until
//! one of them writes; what is put is rounded once, and read back and saved as it was kept. No
//! block that attention reads spans two pieces. Knows no layers or sessions.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use moeflux_io::AlignedBytes;
use moeflux_kernels::{
    BLOCK_POSITIONS, CodeShape, Kept, KeptRows, Matrix, MatrixLayout, round_to_f16,
};

use crate::backend::room::{Booking, Room};
use crate::ops::KvKind;

/// Positions of a piece. Reading is as fast as from one piece of memory: a head's positions follow
/// each other for long enough.
pub(crate) const PIECE_POSITIONS: usize = 1024;

const _: () = assert!(PIECE_POSITIONS.is_multiple_of(BLOCK_POSITIONS));

/// Positions that there is room for once all of a context were used.
#[must_use]
pub(crate) const fn positions_in_pieces(context: usize) -> usize {
    if context <= PIECE_POSITIONS { context } else { context.next_multiple_of(PIECE_POSITIONS) }
}

/// Kernels take sixteen rows of codes at a time: a table of fewer would be copied for each call.
const CODE_ROWS_MIN: usize = 16;

/// A vector per head and position.
///
/// A head's positions lie side by side: attention reads one head after another, and memory that
/// follows itself is read in half the time of pieces that lie apart.
#[derive(Debug)]
pub(crate) struct KvTable {
    kind: KvKind,
    n_heads: usize,
    head_dim: usize,
    /// Positions of a piece: fewer where the context is short.
    n_piece_rows: usize,
    /// Bytes of one head of one position, in each part.
    part_bytes: [usize; 3],
    pieces: Vec<Arc<Piece>>,
}

/// Memory of some positions that follow each other.
#[derive(Debug)]
struct Piece {
    /// Values or codes, scales, biases; each `[n_heads, n_piece_rows, part_bytes]`. The system
    /// hands pages out when they are first written.
    parts: [AlignedBytes; 3],
    _booking: Booking,
}

impl KvTable {
    /// A table without room, for sessions of at most `context` positions.
    #[must_use]
    pub(crate) fn new(kind: KvKind, (n_heads, head_dim): (usize, usize), context: usize) -> Self {
        let n_piece_rows = context.clamp(CODE_ROWS_MIN, PIECE_POSITIONS);
        let part_bytes = kind.part_bytes(head_dim);
        Self { kind, n_heads, head_dim, n_piece_rows, part_bytes, pieces: Vec::new() }
    }

    /// Bytes that [`KvTable::reserve`] takes for these positions.
    #[must_use]
    pub(crate) fn missing_bytes(&self, positions: &Range<usize>) -> usize {
        let n_pieces = positions.end.div_ceil(self.n_piece_rows).saturating_sub(self.pieces.len());
        let is_shared = |piece_idx: &usize| Arc::strong_count(&self.pieces[*piece_idx]) > 1;
        let n_shared = self.written(positions).filter(is_shared).count();
        (n_pieces + n_shared) * self.piece_bytes()
    }

    /// Room of its own for these positions, and some for all before them; `false` if there is none
    /// to be had.
    #[must_use]
    pub(crate) fn reserve(&mut self, positions: &Range<usize>, room: &Arc<Room>) -> bool {
        while self.pieces.len() * self.n_piece_rows < positions.end {
            let Some(piece) = self.zeroed_piece(room) else { return false };
            self.pieces.push(Arc::new(piece));
        }
        self.written(positions).all(|piece_idx| self.own(piece_idx, room))
    }

    /// The pieces of some positions, as far as there are some.
    fn written(&self, positions: &Range<usize>) -> Range<usize> {
        let n_pieces = self.pieces.len();
        let first = (positions.start / self.n_piece_rows).min(n_pieces);
        first..positions.end.div_ceil(self.n_piece_rows).min(n_pieces)
    }

    /// Makes a piece that is shared with forks this table's own.
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

    /// A table with the same contents, which shares its memory as long as neither writes there.
    #[must_use]
    pub(crate) fn fork(&self) -> Self {
        Self { pieces: self.pieces.clone(), ..*self }
    }

    /// Positions that follow these within their piece, at most so many.
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

    /// One head of some positions, all of which lie in one piece.
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

    /// The codes of one head in one piece: a row per position.
    fn matrix(&self, head_idx: usize, piece_idx: usize) -> Matrix<'_> {
        let (shape, n_rows) = (CodeShape::of(self.head_dim), self.n_piece_rows);
        let layout = MatrixLayout { kind: shape.kind(), n_rows, n_cols: shape.n_cols };
        let first = piece_idx * n_rows;
        let [codes, scales, biases] =
            [0, 1, 2].map(|part_idx| self.part(part_idx, head_idx, &(first..first + n_rows)));
        Matrix::new(layout, codes, scales, biases)
    }

    /// Keeps one head of one position.
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

    /// Bytes of a piece.
    #[must_use]
    pub(crate) fn piece_bytes(&self) -> usize {
        self.n_bytes(self.n_piece_rows)
    }

    /// Bytes of so many positions.
    #[must_use]
    pub(crate) fn n_bytes(&self, n: usize) -> usize {
        n * self.n_heads * self.part_bytes.iter().sum::<usize>()
    }

    /// One part of one head of some positions of one piece.
    fn part(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> &[u8] {
        let piece = &self.pieces[positions.start / self.n_piece_rows];
        &piece.parts[part_idx][self.place(part_idx, head_idx, positions)]
    }

    /// The piece that a position lies in, to write.
    fn piece_mut(&mut self, position: usize) -> &mut Piece {
        let piece = &mut self.pieces[position / self.n_piece_rows];
        Arc::get_mut(piece).expect("what is written has room of its own")
    }

    /// Where some positions of one piece lie in it.
    fn place(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> Range<usize> {
        assert!(head_idx < self.n_heads, "head {head_idx} of {}", self.n_heads);
        let first = positions.start % self.n_piece_rows;
        let end = first + positions.len();
        assert!(end <= self.n_piece_rows, "{positions:?} span pieces of {}", self.n_piece_rows);
        let place = |row| (head_idx * self.n_piece_rows + row) * self.part_bytes[part_idx];
        place(first)..place(end)
    }

    /// Head and part of what is kept of a position, in the order in which it is saved.
    fn pieces_of_a_position(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..self.n_heads).flat_map(|head_idx| [0, 1, 2].map(|part_idx| (head_idx, part_idx)))
    }

    /// Copies so many positions from `first` out: `[position, head, part]`.
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

    /// Overwrites so many positions from `first`, as [`KvTable::read`] gives them.
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
