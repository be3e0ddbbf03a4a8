//! The part of every routed expert that one of several machines has: some rows of each matrix.
//!
//! Each output of a matrix is one product with a whole row, so that whoever has a row computes the
//! same bits as who has all of them. **Invariant:** the parts of all ranks are all rows, each once;
//! a part is an ordinary matrix, whose scales are those of the whole.

use std::ops::Range;

use moeflux_kernels::{MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::weights::manifest::{BankPart, ExpertBank, Places};
use crate::weights::resident::{ExpertLayout, MatrixSpan};

/// Kernels compute so many rows at a time.
const ROWS_AT_ONCE: usize = 16;

/// How rows are divided over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// What each rank has, in proportion to the others.
    weights: Vec<u32>,
}

impl Shares {
    /// The same for each of so many ranks.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn equal(n_ranks: usize) -> Self {
        Self::new(vec![1; n_ranks])
    }

    /// In proportion to these.
    ///
    /// # Panics
    ///
    /// If there are none, or if one is 0.
    #[must_use]
    pub fn new(weights: Vec<u32>) -> Self {
        assert!(!weights.is_empty() && !weights.contains(&0), "each rank has a share: {weights:?}");
        Self { weights }
    }

    /// How many ranks there are.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.weights.len()
    }

    /// The rows of a matrix that a rank has, cut at multiples of [`ROWS_AT_ONCE`] where there are
    /// enough of these, and of what shares a scale; `None` if a rank would have none, or a scale
    /// had to be cut.
    fn rows(&self, layout: MatrixLayout, rank: usize) -> Option<Range<usize>> {
        let per_scale = match layout.kind {
            MatrixKind::Fp8(fp8) if fp8.rows_per_scale() <= layout.n_rows => fp8.rows_per_scale(),
            _ => 1,
        };
        let units = [per_scale.max(ROWS_AT_ONCE), per_scale];
        units.into_iter().find_map(|unit| {
            let cuts: Vec<usize> =
                (0..=self.n_ranks()).map(|rank| self.cut(layout.n_rows, unit, rank)).collect();
            let has_all = cuts.windows(2).all(|pair| pair[0] < pair[1]);
            has_all.then(|| cuts[rank]..cuts[rank + 1])
        })
    }

    /// Where the rows of a rank begin, in whole units; behind the last rank all rows end.
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

impl ExpertBank {
    /// The rows of each matrix that a rank has, as experts of their own: the same rows of gate and
    /// up, and rows of down.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the rows cannot be divided over so many ranks.
    pub fn part_of(&self, shares: &Shares, rank: usize) -> Result<Self> {
        let ExpertLayout { gate, up, down } = self.layout;
        let rows = |span: MatrixSpan| {
            shares.rows(span.layout, rank).ok_or_else(|| {
                Error::Unsupported(format!(
                    "{}: expert matrices of {} rows in {} cannot be divided over {} machines: use \
                     fewer",
                    self.name,
                    span.layout.n_rows,
                    span.layout.kind,
                    shares.n_ranks()
                ))
            })
        };
        let (inner, hidden) = (rows(gate)?, rows(down)?);
        let cut = |layout: MatrixLayout, rows: &Range<usize>| MatrixLayout {
            n_rows: rows.len(),
            ..layout
        };
        let (layout, stored) = if self.layout.is_interleaved() {
            // A row of each in turn.
            let both = 2 * inner.start..2 * inner.end;
            let gate_up = gate.whole().layout;
            let layout = ExpertLayout::interleaved(cut(gate_up, &both), cut(down.layout, &hidden));
            (layout, vec![(gate_up, both), (down.layout, hidden)])
        } else {
            let (gate, up, down) = (gate.layout, up.layout, down.layout);
            let layout = ExpertLayout::new(cut(gate, &inner), cut(up, &inner), cut(down, &hidden));
            (layout, vec![(gate, inner.clone()), (up, inner), (down, hidden)])
        };
        let pieces = stored.into_iter().flat_map(|(layout, rows)| pieces(layout, &rows));
        let starts = layout.parts();
        let parts = self.parts.iter().zip(pieces).zip(starts);
        let parts = parts.map(|((part, piece), at)| part.cut(piece, at.start)).collect();
        Ok(Self { layout, parts, records: None, ..self.clone() })
    }
}

/// Which bytes of codes, of scales and of biases some rows have, as far as there are any.
fn pieces(layout: MatrixLayout, rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let of = |n_rows| MatrixLayout { n_rows, ..layout };
    let own = of(rows.len());
    let scales_at = match layout.kind {
        // One scale may be that of all rows.
        MatrixKind::Fp8(fp8) => {
            let n_before = rows.start / fp8.rows_per_scale();
            n_before * fp8.scales_per_row(layout.n_cols) * fp8.scale.bytes()
        }
        MatrixKind::Float(_) | MatrixKind::Block(_) | MatrixKind::Affine(_) => {
            of(rows.start).scale_bytes()
        }
    };
    let all = [
        (rows.start * layout.row_bytes(), own.code_bytes()),
        (scales_at, own.scale_bytes()),
        (of(rows.start).bias_bytes(), own.bias_bytes()),
    ];
    all.into_iter().filter(|(_, n_bytes)| *n_bytes > 0).map(|(at, n_bytes)| at..at + n_bytes)
}

impl BankPart {
    /// Some bytes of it, at a place in a record.
    fn cut(&self, piece: Range<usize>, record_at: usize) -> Self {
        let skipped = piece.start as u64;
        let places = match &self.places {
            &Places::Strided { file_idx, first_bytes, stride_bytes } => {
                Places::Strided { file_idx, first_bytes: first_bytes + skipped, stride_bytes }
            }
            Places::Each(places) => {
                Places::Each(places.iter().map(|(file, at)| (*file, at + skipped)).collect())
            }
        };
        let n_before_bytes = self.n_before_bytes + piece.start;
        Self { record_at, len_bytes: piece.len(), n_before_bytes, places, ..self.clone() }
    }
}
