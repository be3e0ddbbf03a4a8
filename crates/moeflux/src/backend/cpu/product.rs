//! Products of rows of activations with matrices, in the backend's arithmetic.
//!
//! Outputs are in blocks of sixteen matrix rows: `[block of rows][pick][row of the block]`.
//! **Invariant:** an output belongs to one row of the matrix and one row of activations; the way
//! either is divided does not change its sum.

use std::ops::Range;

use moeflux_kernels::{
    Activations, FloatProduct, IntInputs, IntProduct, IntRows, IntScratch, KernelTable, Matrix,
    MatrixKind, MatrixLayout, QuantisedRow, ROWS_PER_BLOCK, RepackedRows,
};

use crate::backend::Arithmetic;
use crate::backend::cpu::Common;
use crate::backend::cpu::split::SplitItems;
use crate::backend::host::Buffers;
use crate::ops::Heads;

/// Rows of activations prepared for matrices of one kind; memory is kept.
#[derive(Debug, Default)]
pub(super) struct PreparedRows {
    are_ints: bool,
    floats: Activations,
    ints: IntRows,
    /// All rows, panel by panel, in the layout of the kernels: matrices and threads share them.
    panels: Vec<RepackedRows>,
    /// 0, 1, 2, ..
    identity: Vec<usize>,
}

/// Rows of a step multiplied by a matrix at a time: enough to amortise unpacking weights, few
/// enough to stay in the L2 cache.
pub(super) const PANEL_ROWS: usize = 128;

/// Prepared inputs, cached while their buffer is unchanged: queries, keys and values use the same
/// rows, and so do shared and routed experts.
#[derive(Debug, Default)]
pub(super) struct PreparedInputs {
    entries: [(Option<PreparedKey>, PreparedRows); N_KEPT],
    next_entry: usize,
}

/// Cost of repacking a row, in values touched.
pub(super) const REPACK_COST: usize = 512;

/// Number of entries: as many as the quantisation types of matrices that share an input.
const N_KEPT: usize = 3;

/// The key of an entry: the rows that it was prepared from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PreparedKey {
    x: Heads,
    n_rows: usize,
    n_writes: u64,
}

impl PreparedInputs {
    /// Returns the first `n_rows` rows of `x`, prepared for matrices of this layout.
    pub(super) fn of(
        &mut self,
        common: &Common,
        x: (&Buffers, &Heads),
        layout: MatrixLayout,
        n_rows: usize,
    ) -> &PreparedRows {
        let entry_idx = self.entry_for(common, x, layout, n_rows);
        &self.entries[entry_idx].1
    }

    /// Returns the same rows, prepared for matrices of two layouts.
    pub(super) fn of_both(
        &mut self,
        common: &Common,
        x: (&Buffers, &Heads),
        [a, b]: [MatrixLayout; 2],
        n_rows: usize,
    ) -> [&PreparedRows; 2] {
        self.entry_for(common, x, a, n_rows);
        let b = self.entry_for(common, x, b, n_rows);
        // Preparing the second may have evicted the first, but not the other way round.
        let a = self.entry_for(common, x, a, n_rows);
        [&self.entries[a].1, &self.entries[b].1]
    }

    /// Returns the index of the entry with the rows, which is prepared if missing.
    fn entry_for(
        &mut self,
        common: &Common,
        (buffers, x): (&Buffers, &Heads),
        layout: MatrixLayout,
        n_rows: usize,
    ) -> usize {
        let key = PreparedKey { x: *x, n_rows, n_writes: buffers.n_writes(x.buffer) };
        let are_ints = takes_ints(common.arithmetic, layout.kind);
        let is_match = |(it, rows): &(Option<PreparedKey>, PreparedRows)| {
            *it == Some(key) && rows.are_ints == are_ints && rows.fits(layout)
        };
        if let Some(found) = self.entries.iter().position(is_match) {
            return found;
        }
        let entry_idx = self.next_entry;
        self.next_entry = (entry_idx + 1) % N_KEPT;
        let (entry_key, rows) = &mut self.entries[entry_idx];
        rows.prepare(common, layout, n_rows, &|row_idx, fill| {
            fill(buffers.head(x, row_idx, 0));
        });
        rows.repack_panels(common, n_rows);
        *entry_key = Some(key);
        entry_idx
    }
}

/// Returns the number of blocks of a matrix's outputs.
pub(super) fn n_blocks(n_rows: usize) -> usize {
    n_rows.div_ceil(ROWS_PER_BLOCK)
}

impl PreparedRows {
    /// Prepares `n_rows` rows for matrices of this layout. `source` passes each row's values to the
    /// function that it receives.
    pub(super) fn prepare(
        &mut self,
        common: &Common,
        layout: MatrixLayout,
        n_rows: usize,
        source: &(impl Fn(usize, &mut dyn FnMut(&[f32])) + Sync),
    ) {
        let MatrixLayout { kind, n_cols, .. } = layout;
        self.are_ints = takes_ints(common.arithmetic, kind);
        if self.are_ints {
            self.ints.reshape(kind, n_rows, n_cols);
            let (shape, values, factors) = self.ints.rows_mut();
            common.split.pairs((values, factors), n_rows, n_cols, &|row_idx, values, factors| {
                let mut row = Some(QuantisedRow { values, factors });
                source(row_idx, &mut |x| {
                    let row = row.take().expect("a source gives one row");
                    shape.fill(common.table, x, row);
                });
            });
        } else {
            self.floats.reshape(kind, n_rows, n_cols);
            let (shape, values, sums) = self.floats.rows_mut();
            common.split.pairs((values, sums), n_rows, shape.stride, &|row_idx, values, sums| {
                source(row_idx, &mut |x| shape.fill(common.table, x, values, sums));
            });
        }
    }

    /// As [`PreparedRows::prepare`], on the calling thread alone.
    pub(super) fn prepare_alone(
        &mut self,
        common: &Common,
        layout: MatrixLayout,
        n_rows: usize,
        source: &impl Fn(usize, &mut dyn FnMut(&[f32])),
    ) {
        let MatrixLayout { kind, n_cols, .. } = layout;
        let Self { are_ints, floats, ints, .. } = self;
        *are_ints = takes_ints(common.arithmetic, kind);
        if *are_ints {
            ints.reshape(kind, n_rows, n_cols);
        } else {
            floats.reshape(kind, n_rows, n_cols);
        }
        for row_idx in 0..n_rows {
            source(row_idx, &mut |x| {
                if *are_ints {
                    ints.fill(common.table, row_idx, x);
                } else {
                    floats.fill(common.table, row_idx, x);
                }
            });
        }
    }

    /// Prepares panels of all rows, for [`PreparedRows::panel`].
    fn repack_panels(&mut self, common: &Common, n_rows: usize) {
        self.identity.extend(self.identity.len()..n_rows);
        if !self.are_ints {
            return;
        }
        let (ints, identity) = (&self.ints, &self.identity[..n_rows]);
        let n_items = n_rows.div_ceil(PANEL_ROWS);
        if self.panels.len() < n_items {
            self.panels.resize_with(n_items, RepackedRows::default);
        }
        let items =
            SplitItems { n_items, align: 1, cost: n_rows * REPACK_COST / n_items, offset: |i| i };
        common.split.ranges(&mut self.panels, &items, &|range, panels| {
            for (panel_idx, panel) in range.zip(panels) {
                common.table.repack(ints, panel_of(identity, panel_idx), panel);
            }
        });
    }

    /// Returns a panel of the rows, prepared for any number of products.
    pub(super) fn panel(&self, panel_idx: usize, n_rows: usize) -> Picked<'_> {
        let picks = panel_of(&self.identity[..n_rows], panel_idx);
        if self.are_ints {
            Picked::Ints(self.panels[panel_idx].inputs(&self.ints, picks))
        } else {
            Picked::Floats(&self.floats, picks)
        }
    }

    /// Prepares some rows, for [`PreparedRows::repacked`].
    pub(super) fn repack(&self, table: &KernelTable, picks: &[usize], repacked: &mut RepackedRows) {
        if self.are_ints {
            table.repack(&self.ints, picks, repacked);
        }
    }

    /// Returns the rows passed to [`PreparedRows::repack`].
    pub(super) fn repacked<'a>(
        &'a self,
        picks: &'a [usize],
        repacked: &'a RepackedRows,
    ) -> Picked<'a> {
        if self.are_ints {
            Picked::Ints(repacked.inputs(&self.ints, picks))
        } else {
            Picked::Floats(&self.floats, picks)
        }
    }

    /// Returns whether these rows can be multiplied with a matrix of this layout.
    pub(super) fn fits(&self, layout: MatrixLayout) -> bool {
        let MatrixLayout { kind, n_cols, .. } = layout;
        if self.are_ints { self.ints.suits(kind, n_cols) } else { self.floats.suits(kind, n_cols) }
    }

    /// Prepares and returns some of these rows, for any number of products.
    pub(super) fn picked<'a>(
        &'a self,
        table: &KernelTable,
        picks: &'a [usize],
        repacked: &'a mut RepackedRows,
    ) -> Picked<'a> {
        if self.are_ints {
            Picked::Ints(table.repack(&self.ints, picks, repacked))
        } else {
            Picked::Floats(&self.floats, picks)
        }
    }
}

/// Returns the picks of a panel.
fn panel_of(picks: &[usize], panel_idx: usize) -> &[usize] {
    &picks[panel_idx * PANEL_ROWS..picks.len().min((panel_idx + 1) * PANEL_ROWS)]
}

/// Rows of activations in the order of a product's outputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Picked<'a> {
    /// In f32.
    Floats(&'a Activations, &'a [usize]),
    /// In int8.
    Ints(IntInputs<'a>),
}

impl Picked<'_> {
    /// Multiplies some rows of a matrix with these rows.
    pub(super) fn multiply(
        &self,
        (table, scratch): (&KernelTable, &mut IntScratch),
        (matrix, rows): (Matrix<'_>, Range<usize>),
        out: &mut [f32],
    ) {
        match *self {
            Self::Ints(x) => table.int_matmul(&IntProduct { matrix, rows, x }, scratch, out),
            Self::Floats(x, picks) => table.matmul(&FloatProduct { matrix, rows, x, picks }, out),
        }
    }
}

/// Returns whether products take int8 activations. Plain floats and FP8 have no integer kernels.
fn takes_ints(arithmetic: Arithmetic, kind: MatrixKind) -> bool {
    let has_codes = matches!(kind, MatrixKind::Affine(_) | MatrixKind::Block(_));
    arithmetic.rounds_activations() && has_codes
}
