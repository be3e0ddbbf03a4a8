//! The layout of an expert in its slot, and the copy of an expert to a slot.
//!
//! **Invariant:** all experts of a layer have the same layout.

use moeflux::provider::error::Result;
use moeflux::provider::weights::{ExpertView, MatrixSpan};
use moeflux_kernels::{Matrix, MatrixLayout};

use crate::compiler::{ExpertSlotLayout, SlotMatrix};
use crate::device::recorder::CommandRecorder;
use crate::device::staging::{StagedCopy, Staging};
use crate::memory::weights::PartBytes;
use crate::params::narrow;

/// Copies an expert to a slot that begins at byte `begin`. Returns `false` if the recorded commands
/// must be submitted first.
pub(super) fn fill(
    (staging, recorder): (&mut Staging, &mut CommandRecorder),
    (buffer, begin): (&wgpu::Buffer, u64),
    (view, slot_layout): (&ExpertView<'_>, &ExpertSlotLayout),
) -> Result<bool> {
    let mut chunks = Vec::with_capacity(9);
    for (matrix, at) in
        [(&view.gate, slot_layout.gate), (&view.up, slot_layout.up), (&view.down, slot_layout.down)]
    {
        assert_eq!(matrix.layout(), at.layout, "experts of a layer are alike");
        let (layout, row_step) = (matrix.layout(), matrix.row_step());
        let rows =
            [layout.row_bytes(), layout.scale_row_bytes()].map(|n_bytes| (n_bytes, row_step));
        push_rows(&mut chunks, (at.codes as usize * 4, matrix.codes()), rows[0]);
        push_rows(&mut chunks, (at.scales as usize * 4, matrix.scales()), rows[1]);
        chunks.push((at.biases as usize * 4, matrix.biases()));
    }
    let n_bytes = slot_layout.n_bytes();
    staging.fill(recorder, &StagedCopy { buffer, begin, n_bytes, chunks: &chunks })
}

/// Appends rows of `row_bytes` bytes, skipping the rows of another matrix interleaved with them.
fn push_rows<'a>(
    chunks: &mut Vec<(usize, &'a [u8])>,
    (at, bytes): (usize, &'a [u8]),
    (row_bytes, row_step): (usize, usize),
) {
    if row_step == 1 || row_bytes == 0 {
        chunks.push((at, bytes));
        return;
    }
    let rows = bytes.chunks(row_bytes * row_step).enumerate();
    chunks.extend(rows.map(|(i, row)| (at + i * row_bytes, &row[..row_bytes])));
}

/// Returns the location of a matrix in a slot that was filled from a file.
pub(super) fn matrix_of(span: MatrixSpan) -> SlotMatrix {
    let MatrixSpan { layout, codes_at, scales_at, biases_at, .. } = span;
    let [codes, scales, biases] = [codes_at, scales_at, biases_at].map(|at| narrow(at / 4));
    SlotMatrix { layout, codes, scales, biases }
}

/// Returns the layouts of gate, up and down.
pub(crate) fn layouts_of(view: &ExpertView<'_>) -> [MatrixLayout; 3] {
    [&view.gate, &view.up, &view.down].map(Matrix::layout)
}

/// Returns a slot layout with gate, up and down in order.
pub(super) fn slot_layout_of(layouts: [MatrixLayout; 3]) -> ExpertSlotLayout {
    let mut n_bytes = 0_u64;
    let [gate, up, down] = layouts.map(|layout| {
        let [scales, biases, end] = PartBytes::of(layout).places(layout.n_rows);
        let word = |at: u64| u32::try_from((n_bytes + at) / 4).expect("an expert fits 32 bits");
        let (codes, scales, biases) = (word(0), word(scales), word(biases));
        n_bytes += end;
        SlotMatrix { layout, codes, scales, biases }
    });
    let n_words = u32::try_from(n_bytes / 4).expect("an expert fits 32 bits");
    ExpertSlotLayout { gate, up, down, n_words }
}
