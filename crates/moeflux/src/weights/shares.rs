//! Divides every routed expert among several machines: each has some rows of each matrix.
//!
//! Each output of a matrix is one product with a whole row, so a machine with some of the rows
//! computes the same bits as one with all of them. **Invariant:** together, the parts of all ranks
//! have each row exactly once; a part is an ordinary matrix, with the scales of the whole.

use std::ops::Range;

use moeflux_kernels::{MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::weights::manifest::{BankPart, ExpertBank, ExpertOffsets};
use crate::weights::resident::{ExpertLayout, MatrixSpan};

/// Rows that kernels compute at a time.
const ROWS_AT_ONCE: usize = 16;

/// How rows are divided among ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Share of each rank, relative to the others.
    weights: Vec<u32>,
}

impl Shares {
    /// Creates equal shares for `n_ranks` ranks.
    ///
    /// # Panics
    ///
    /// If `n_ranks` is 0.
    #[must_use]
    pub fn equal(n_ranks: usize) -> Self {
        Self::new(vec![1; n_ranks])
    }

    /// Creates shares in proportion to `weights`.
    ///
    /// # Panics
    ///
    /// If there are no weights, or if one is 0.
    #[must_use]
    pub fn new(weights: Vec<u32>) -> Self {
        assert!(!weights.is_empty() && !weights.contains(&0), "each rank has a share: {weights:?}");
        Self { weights }
    }

    fn are_equal(&self) -> bool {
        self.weights.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.weights.len()
    }

    /// Returns a rank's part of `n_rows` rows. Parts begin at multiples of `per_scale`, the number
    /// of rows that share a scale, and also of [`ROWS_AT_ONCE`] if there are enough rows. Returns
    /// `None` if a rank would have no rows.
    fn rows(&self, (n_rows, per_scale): (usize, usize), rank: usize) -> Option<Range<usize>> {
        let units = [per_scale.max(ROWS_AT_ONCE), per_scale];
        units.into_iter().find_map(|unit| {
            let cuts: Vec<usize> =
                (0..=self.n_ranks()).map(|rank| self.cut(n_rows, unit, rank)).collect();
            let has_all = cuts.windows(2).all(|pair| pair[0] < pair[1]);
            has_all.then(|| cuts[rank]..cuts[rank + 1])
        })
    }

    /// Returns the first row of a rank, a multiple of `unit`. For the rank after the last, returns
    /// `n_rows`.
    fn cut(&self, n_rows: usize, unit: usize, rank: usize) -> usize {
        let sum = |weights: &[u32]| weights.iter().map(|it| u64::from(*it)).sum::<u64>();
        let (before, all) = (sum(&self.weights[..rank]), sum(&self.weights));
        if before == all {
            return n_rows;
        }
        let n_units = (n_rows / unit) as u64;
        let n_before = (u128::from(n_units) * u128::from(before)).div_ceil(u128::from(all));
        usize::try_from(n_before).expect("fewer than all rows") * unit
    }
}

/// The rows that a rank has of each expert of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRows {
    /// Rows of gate and up.
    pub inner: Range<usize>,
    /// Rows of down.
    pub hidden: Range<usize>,
}

impl ExpertBank {
    /// Returns the rows of each matrix that a rank has.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the rows cannot be divided among this many ranks.
    pub fn rows_of(&self, shares: &Shares, rank: usize) -> Result<OwnRows> {
        let ExpertLayout { gate, up, down } = self.layout;
        let rows = |spans: [MatrixSpan; 2]| {
            let [MatrixLayout { n_rows, kind, .. }, _] = spans.map(|span| span.layout);
            // Each is a power of two: the larger is a multiple of the smaller.
            let per_scale = spans.map(|span| rows_per_scale(span.layout)).into_iter().max();
            shares.rows((n_rows, per_scale.unwrap_or(1)), rank).ok_or_else(|| {
                let (name, n_ranks) = (&self.name, shares.n_ranks());
                let is_equal = shares.are_equal();
                Error::Unsupported(format!(
                    "{name}: expert matrices of {n_rows} rows in {kind} cannot be divided among \
                     {n_ranks} machines{}: use fewer{}",
                    if is_equal { "" } else { " in these shares" },
                    if is_equal { "" } else { ", or more equal shares" }
                ))
            })
        };
        Ok(OwnRows { inner: rows([gate, up])?, hidden: rows([down, down])? })
    }

    /// Returns the rows of each matrix that a rank has, as a bank of its own.
    ///
    /// # Errors
    ///
    /// As [`ExpertBank::rows_of`].
    ///
    /// # Panics
    ///
    /// If the matrices are stored transposed, with a row for each input.
    pub fn part_of(&self, shares: &Shares, rank: usize) -> Result<Self> {
        assert!(!self.is_input_first, "{}: rows that are inputs cannot be divided", self.name);
        let ExpertLayout { gate, up, down } = self.layout;
        let OwnRows { inner, hidden } = self.rows_of(shares, rank)?;
        let cut = |layout: MatrixLayout, rows: &Range<usize>| MatrixLayout {
            n_rows: rows.len(),
            ..layout
        };
        let (layout, stored) = if self.layout.is_interleaved() {
            // Rows of gate and up alternate.
            let both = 2 * inner.start..2 * inner.end;
            let gate_up = gate.whole().layout;
            let layout = ExpertLayout::interleaved(cut(gate_up, &both), cut(down.layout, &hidden));
            (layout, vec![(gate_up, both), (down.layout, hidden)])
        } else {
            let (gate, up, down) = (gate.layout, up.layout, down.layout);
            let layout = ExpertLayout::new(cut(gate, &inner), cut(up, &inner), cut(down, &hidden));
            (layout, vec![(gate, inner.clone()), (up, inner), (down, hidden)])
        };
        let pieces = stored.into_iter().flat_map(|(layout, rows)| layout.bytes_of_rows(&rows));
        let pieces = pieces.filter(|piece| !piece.is_empty());
        let starts = layout.parts();
        let parts = self.parts.iter().zip(pieces).zip(starts);
        let parts = parts.map(|((part, piece), at)| part.cut(piece, at.start)).collect();
        Ok(Self { layout, parts, records: None, ..self.clone() })
    }
}

/// Returns the number of rows that share a scale and must stay together. Returns 1 if all rows
/// share one: each part then has a copy of it.
fn rows_per_scale(layout: MatrixLayout) -> usize {
    match layout.kind {
        MatrixKind::Fp8(fp8) if fp8.rows_per_scale() <= layout.n_rows => fp8.rows_per_scale(),
        _ => 1,
    }
}

impl BankPart {
    /// Returns a byte range of this part, with its place in the record, `record_at`.
    fn cut(&self, piece: Range<usize>, record_at: usize) -> Self {
        let skipped = piece.start as u64;
        let offsets = match &self.offsets {
            &ExpertOffsets::Strided { file_idx, first_bytes, stride_bytes } => {
                ExpertOffsets::Strided {
                    file_idx,
                    first_bytes: first_bytes + skipped,
                    stride_bytes,
                }
            }
            ExpertOffsets::Each(offsets) => ExpertOffsets::Each(
                offsets.iter().map(|(file, at)| (*file, at + skipped)).collect(),
            ),
        };
        let n_before_bytes = self.n_before_bytes + piece.start;
        Self { record_at, len_bytes: piece.len(), n_before_bytes, offsets, ..self.clone() }
    }
}
