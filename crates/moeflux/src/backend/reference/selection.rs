//! The choice of the positions that a row attends to, and the keys of blocks of positions.

use super::attention::vectors;
use super::{ReferenceBackend, dot, rounded};
use crate::ids::StateId;
use crate::ops::{Batch, PoolKeys, SelectPositions};

impl ReferenceBackend {
    pub(super) fn pool_keys(&mut self, op: &PoolKeys, batch: &Batch<'_>) {
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position.0;
                let own = self.head(&op.k, row_idx, 0);
                if !(position + 1).is_multiple_of(op.block) {
                    let key = self.buffers.head(&op.k, row_idx, 0);
                    let layer = self.states.layer_mut(segment.state, op.layer);
                    layer.index_keys_mut().put(0, position, key);
                    self.set_head(&op.out, row_idx, 0, &own);
                    continue;
                }
                let earlier: Vec<usize> = (position + 1 - op.block..position).collect();
                let layer = self.states.layer(segment.state, op.layer);
                let mut mean = own;
                for key in vectors(layer.index_keys(), &earlier, 0) {
                    mean.iter_mut().zip(key).for_each(|(sum, value)| *sum += value);
                }
                mean.iter_mut().for_each(|sum| *sum /= op.block as f64);
                self.set_head(&op.out, row_idx, 0, &mean);
            }
        }
    }

    pub(super) fn select_positions(&mut self, op: &SelectPositions, batch: &Batch<'_>) {
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position.0;
                if (position + 1).is_multiple_of(op.chosen.block) {
                    let key = self.buffers.head(&op.k, row_idx, 0);
                    let layer = self.states.layer_mut(segment.state, op.layer);
                    layer.index_keys_mut().put(0, position, key);
                }
                if op.chosen.is_all(position) {
                    continue;
                }
                let scores = self.block_scores(op, segment.state, (row_idx, position));
                let mut list = self.head(&op.chosen.list, row_idx, 0);
                match largest(&scores, op.chosen.n_blocks()) {
                    Some(blocks) => {
                        let block = op.chosen.block;
                        let chosen = blocks.into_iter().flat_map(|it| it * block..(it + 1) * block);
                        put(&mut list, chosen.chain(scores.len() * block..position + 1));
                    }
                    None => list.fill(f64::NAN),
                }
                self.set_head(&op.chosen.list, row_idx, 0, &list);
            }
        }
    }

    /// Returns the scores of all whole blocks that a row sees.
    fn block_scores(
        &self,
        op: &SelectPositions,
        state: StateId,
        (row_idx, position): (usize, usize),
    ) -> Vec<f32> {
        let block = op.chosen.block;
        let last: Vec<usize> = (block - 1..=position).step_by(block).collect();
        let keys = vectors(self.states.layer(state, op.layer).index_keys(), &last, 0);
        let weights = match &op.weights {
            Some(weights) => self.head(weights, row_idx, 0),
            None => vec![1.0; op.q.n_heads],
        };
        assert_eq!(weights.len(), op.q.n_heads, "a weight for each head");
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

/// Returns the blocks of the `n` largest scores, ascending; `None` if a score is not finite.
fn largest(scores: &[f32], n: usize) -> Option<Vec<usize>> {
    if scores.iter().any(|score| !score.is_finite()) {
        return None;
    }
    let mut blocks: Vec<usize> = (0..scores.len()).collect();
    // The sort is stable: of equal scores, the lower block stays in front.
    blocks.sort_by(|&x, &y| scores[y].partial_cmp(&scores[x]).expect("finite scores"));
    blocks.truncate(n);
    blocks.sort_unstable();
    Some(blocks)
}

/// Lists positions.
fn put(list: &mut [f64], positions: impl Iterator<Item = usize>) {
    for (listed, position) in list.iter_mut().zip(positions) {
        *listed = position as f64;
    }
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
        let chosen = ChosenPositions { list, block: 1 };
        let op = SelectPositions { layer: LayerIdx(0), q, k, weights: Some(weights), chosen };
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
    fn whole_blocks_are_chosen_and_those_behind_them_belong_to_each_choice() {
        let mut fixture = Fixture::default();
        fixture.state.layers =
            vec![LayerState::KeyValue { n_heads: 1, k_cols: 1, v_cols: 1, index_cols: 1 }];
        let k = fixture.input("k", &[[4.0_f32], [2.0], [1.0], [3.0], [5.0], [9.0], [7.0]]);
        let pooled = fixture.workspace.buffer("pooled", 1);
        let pool = PoolKeys { layer: LayerIdx(0), k, block: 2, out: pooled };
        let rows = fixture.run(Op::PoolKeys(pool.clone()), pooled);
        assert_eq!(rows.concat(), [4.0, 3.0, 1.0, 2.0, 5.0, 7.0, 7.0]);
        let q = fixture.input("q", &[[1.0_f32], [1.0], [1.0], [1.0], [1.0], [-1.0], [1.0]]);
        let list: Heads = fixture.input("list", &[[-1.0_f32; 3]; 7]);
        let chosen = ChosenPositions { list, block: 2 };
        assert_eq!((0..7).map(|it| chosen.n_of(it)).collect::<Vec<_>>(), [1, 2, 3, 2, 3, 2, 3]);
        let op = SelectPositions { layer: LayerIdx(0), q, k: pooled, weights: None, chosen };
        let ops = vec![Op::PoolKeys(pool), Op::SelectPositions(op)];
        let rows = fixture.run_all(ops, list);
        // Three positions are one whole block and one more: nothing is written.
        assert_eq!(rows[..3], [[-1.0; 3]; 3]);
        // The averages of the blocks are 3, 2 and 7.
        assert_eq!(rows[3], [0.0, 1.0, -1.0]);
        assert_eq!(rows[4], [0.0, 1.0, 4.0]);
        // All scores are 0, so that the lowest block is chosen.
        assert_eq!(rows[5], [0.0, 1.0, -1.0]);
        assert_eq!(rows[6], [4.0, 5.0, 6.0]);
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
