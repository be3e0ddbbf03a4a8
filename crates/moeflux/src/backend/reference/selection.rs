//! The choice of the positions that a row attends to.

use super::attention::vectors;
use super::{ReferenceBackend, dot, rounded};
use crate::ids::StateId;
use crate::ops::{Batch, SelectPositions};

impl ReferenceBackend {
    pub(super) fn select_positions(&mut self, op: &SelectPositions, batch: &Batch<'_>) {
        assert_eq!(op.weights.head_dim, op.q.n_heads, "a weight for each head");
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position.0;
                let key = self.buffers.head(&op.k, row_idx, 0);
                let layer = self.states.layer_mut(segment.state, op.layer);
                layer.index_keys_mut().put(0, position, key);
                if op.chosen.is_all(position) {
                    continue;
                }
                let scores = self.position_scores(op, segment.state, (row_idx, position));
                let list = largest(&scores, op.chosen.n_of(position));
                self.set_head(&op.chosen.list, row_idx, 0, &list);
            }
        }
    }

    /// Returns the scores of all positions that a row sees.
    fn position_scores(
        &self,
        op: &SelectPositions,
        state: StateId,
        (row_idx, position): (usize, usize),
    ) -> Vec<f32> {
        let seen: Vec<usize> = (0..=position).collect();
        let keys = vectors(self.states.layer(state, op.layer).index_keys(), &seen, 0);
        let weights = self.head(&op.weights, row_idx, 0);
        let queries: Vec<Vec<f64>> =
            (0..op.q.n_heads).map(|head_idx| self.head(&op.q, row_idx, head_idx)).collect();
        let score = |key: &Vec<f64>| {
            let products = queries.iter().map(|q| dot(q, key));
            // A comparison keeps NaN; `max` would not.
            let positive = products.map(|product| if product < 0.0 { 0.0 } else { product });
            rounded(positive.zip(&weights).map(|(product, weight)| product * weight).sum())
        };
        keys.iter().map(score).collect()
    }
}

/// Returns the positions of the `n` largest scores, ascending, or NaN if a score is not finite.
fn largest(scores: &[f32], n: usize) -> Vec<f64> {
    if scores.iter().any(|score| !score.is_finite()) {
        return vec![f64::NAN; n];
    }
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    // The sort is stable: of equal scores, the lower position stays in front.
    positions.sort_by(|&x, &y| scores[y].partial_cmp(&scores[x]).expect("finite scores"));
    positions.truncate(n);
    positions.sort_unstable();
    positions.into_iter().map(|position| position as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::fixture::Fixture;
    use crate::ids::LayerIdx;
    use crate::ops::{ChosenPositions, Heads, LayerState, Op};

    /// Two heads of one channel; the weights of the heads are 1 and 10.
    fn select(q: &[&[f32]; 5], k: [f32; 5]) -> Vec<Vec<f32>> {
        let mut fixture = Fixture::default();
        fixture.state.layers =
            vec![LayerState::Latent { latent_cols: 1, rope_cols: 1, index_cols: 1 }];
        let q = fixture.input("q", q).split(2);
        let k = fixture.input("k", &k.map(|k| [k]));
        let weights = fixture.input("weights", &[[1.0_f32, 10.0]; 5]);
        let list: Heads = fixture.input("list", &[[-1.0_f32; 2]; 5]);
        let chosen = ChosenPositions { list };
        let op = SelectPositions { layer: LayerIdx(0), q, k, weights, chosen };
        fixture.run(Op::SelectPositions(op), list)
    }

    #[test]
    fn the_largest_scores_are_listed_in_ascending_order() {
        let q: [&[f32]; 5] = [&[1.0, 0.0], &[1.0, 0.0], &[1.0, 0.0], &[1.0, -1.0], &[-1.0, 0.0]];
        let rows = select(&q, [3.0, 1.0, 2.0, -9.0, 5.0]);
        // Two positions are not more than a list: nothing is written.
        assert_eq!(rows[..2], [[-1.0; 2]; 2]);
        assert_eq!(rows[2], [0.0, 2.0]);
        // The negative product of the first head counts as 0; the second gives 90.
        assert_eq!(rows[3], [0.0, 3.0]);
        // All scores but that of -9 are 0, so the lowest position follows.
        assert_eq!(rows[4], [0.0, 3.0]);
    }

    #[test]
    fn a_broken_score_breaks_the_list() {
        let rows = select(&[&[1.0, 1.0]; 5], [1.0, f32::NAN, 1.0, 1.0, 1.0]);
        assert_eq!(rows[1], [-1.0; 2]);
        assert!(rows[2..].iter().flatten().all(|it| it.is_nan()), "{rows:?}");
        let rows = select(&[&[1e30, 0.0]; 5], [1e30, 0.0, 0.0, 0.0, 0.0]);
        assert!(rows[2..].iter().flatten().all(|it| it.is_nan()), "{rows:?}");
    }
}
