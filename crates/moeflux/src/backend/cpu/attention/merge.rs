//! Merges results over spans of positions in ascending order.
//!
//! **Invariant:** a span of which a row sees nothing has no effect, whether or not it was visited.

use moeflux_kernels::{KernelTable, SoftmaxState};

/// A softmax over some positions and the weighted values, not yet divided by the sum.
#[derive(Clone, Copy)]
pub(super) struct PartialSoftmax<'a> {
    pub(super) running: SoftmaxState,
    pub(super) values: &'a [f32],
}

/// Merges `part` into `out` and `total`.
pub(super) fn add(
    table: &KernelTable,
    total: &mut SoftmaxState,
    out: &mut [f32],
    part: PartialSoftmax<'_>,
) {
    if part.running.is_empty() {
        return;
    }
    if total.is_empty() {
        *total = part.running;
        out.copy_from_slice(part.values);
        return;
    }
    let factor = rebased(table, total, part.running, out);
    table.axpy(factor, part.values, out);
}

/// Merges the spans, then the sink, and divides by the sum.
pub(super) fn finish(
    table: &KernelTable,
    parts: &mut dyn Iterator<Item = PartialSoftmax<'_>>,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let mut total = SoftmaxState::EMPTY;
    out.fill(0.0);
    for part in parts {
        add(table, &mut total, out, part);
    }
    if let Some(sink) = sink {
        rebased(table, &mut total, SoftmaxState { max: sink, sum: 1.0 }, out);
    }
    out.iter_mut().for_each(|it| *it /= total.sum);
}

/// Rescales `total` and `out` to the larger of both maxima and adds the other sum. Returns the
/// factor for the other's values.
fn rebased(
    table: &KernelTable,
    total: &mut SoftmaxState,
    other: SoftmaxState,
    out: &mut [f32],
) -> f32 {
    let max = if other.max > total.max { other.max } else { total.max };
    let mut factors = [total.max, other.max];
    table.exp_shifted(&mut factors, max);
    let [kept, factor] = factors;
    out.iter_mut().for_each(|it| *it *= kept);
    *total = SoftmaxState { max, sum: total.sum * kept + other.sum * factor };
    factor
}
