//! [`TopK`] in host memory, for the reference and the CPU backend.
//!
//! Sorts the whole row: slow, and obviously right. Production code does not need it on these
//! backends: their logits are in host memory, and the sampler reads all of them anyway.

use std::cmp::Ordering;

use crate::backend::host::Buffers;
use crate::ops::TopK;

/// Finds the largest values of every row.
pub(super) fn best(op: &TopK, buffers: &mut Buffers, n_rows: usize) {
    for row_idx in 0..n_rows {
        let found = best_of(buffers.head(&op.x, row_idx, 0), op.out.head_dim / 2);
        buffers.head_mut(&op.out, row_idx, 0).copy_from_slice(&found);
    }
}

/// Returns the `n` largest values, largest first, followed by their columns.
fn best_of(values: &[f32], n: usize) -> Vec<f32> {
    let mut columns: Vec<usize> = (0..values.len()).collect();
    columns.sort_by(|&left, &right| larger_first(values[left], values[right]));
    columns.truncate(n);
    let found = columns.iter().map(|&column| values[column]);
    found.chain(columns.iter().map(|&column| number_of(column))).collect()
}

/// Equal if neither value is larger; the library's sort is stable.
fn larger_first(left: f32, right: f32) -> Ordering {
    right.is_nan().cmp(&left.is_nan()).then(right.partial_cmp(&left).unwrap_or(Ordering::Equal))
}

#[expect(clippy::cast_precision_loss, reason = "a column below 2^24 is a number exactly")]
fn number_of(column: usize) -> f32 {
    column as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_values_the_first_wins() {
        let values = [1.0, 3.0, -0.0, 3.0, f32::NEG_INFINITY, 0.0];
        assert_eq!(best_of(&values, 4), [3.0, 3.0, 1.0, 0.0, 1.0, 3.0, 0.0, 2.0]);
    }

    #[test]
    fn nan_comes_first() {
        let found = best_of(&[1.0, f32::INFINITY, -f32::NAN], 2);
        assert!(found[0].is_nan() && found[2..] == [2.0, 1.0], "{found:?}");
    }
}
