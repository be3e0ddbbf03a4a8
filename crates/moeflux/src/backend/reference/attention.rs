//! Attention over a session's positions: softmax with grouped heads, and MLA in absorbed form.
//!
//! **Invariant:** one pass over all positions that a row sees, from the first to its own.

use std::ops::Range;

use moeflux_kernels::CachedValues;

use super::{ReferenceBackend, dot, sigmoid, widened};
use crate::backend::host::{HostLayerState, HostStates};
use crate::backend::kv::KvTable;
use crate::ids::{LayerIdx, Position, StateId};
use crate::ops::{Attention, Batch, ChosenPositions, MlaAttention};

impl ReferenceBackend {
    pub(super) fn attention(&mut self, op: &Attention, batch: &Batch<'_>) {
        assert_eq!(op.k.n_heads, op.v.n_heads, "a value per key");
        assert_eq!(op.q.n_heads, op.out.n_heads, "an output per query");
        assert!(op.q.n_heads.is_multiple_of(op.k.n_heads), "queries share keys evenly");
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position;
                self.append_keys(op, segment.state, row_idx, position);
                let n_seen = op.window.unwrap_or(usize::MAX).min(position.0 + 1);
                let seen = position.0 + 1 - n_seen..position.0 + 1;
                for head_idx in 0..op.q.n_heads {
                    self.attend(op, segment.state, row_idx, head_idx, &seen);
                }
            }
        }
    }

    /// Computes one query head of one row over the positions in `seen`.
    fn attend(
        &mut self,
        op: &Attention,
        state: StateId,
        row_idx: usize,
        head_idx: usize,
        seen: &Range<usize>,
    ) {
        let key_head_idx = head_idx / (op.q.n_heads / op.k.n_heads);
        let cache = LayerCache::of(&self.states, state, op.layer);
        let seen: Vec<usize> = seen.clone().collect();
        let keys = vectors(cache.first, &seen, key_head_idx);
        let values = vectors(cache.second, &seen, key_head_idx);
        let q = self.head(&op.q, row_idx, head_idx);
        let scores: Vec<f64> = keys.iter().map(|k| dot(&q, k) * f64::from(op.scale)).collect();
        let sink = op.sinks.map(|sinks| f64::from(self.weights.vector(sinks)[head_idx]));
        let mut out = mixed(&softmax(&scores, sink), &values);
        if let Some(gate) = &op.gate {
            let gate = self.head(gate, row_idx, head_idx);
            for (out, &gate) in out.iter_mut().zip(&gate) {
                *out *= sigmoid(gate);
            }
        }
        self.set_head(&op.out, row_idx, head_idx, &out);
    }

    fn append_keys(&mut self, op: &Attention, state: StateId, row_idx: usize, at: Position) {
        for head_idx in 0..op.k.n_heads {
            let k = self.buffers.head(&op.k, row_idx, head_idx);
            let v = self.buffers.head(&op.v, row_idx, head_idx);
            append(&mut self.states, (state, op.layer), (at, head_idx), (k, v));
        }
    }

    pub(super) fn mla_attention(&mut self, op: &MlaAttention, batch: &Batch<'_>) {
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position;
                let latent = self.buffers.head(&op.latent, row_idx, 0);
                let k_rope = self.buffers.head(&op.k_rope, row_idx, 0);
                let place = (segment.state, op.layer);
                append(&mut self.states, place, (position, 0), (latent, k_rope));
                let cache = LayerCache::of(&self.states, segment.state, op.layer);
                let Some(seen) = self.chosen(op.chosen.as_ref(), row_idx, position.0) else {
                    let broken = vec![f64::NAN; op.out.head_dim];
                    (0..op.out.n_heads).for_each(|it| self.set_head(&op.out, row_idx, it, &broken));
                    continue;
                };
                let latents = vectors(cache.first, &seen, 0);
                let k_ropes = vectors(cache.second, &seen, 0);
                for head_idx in 0..op.q_latent.n_heads {
                    let q_latent = self.head(&op.q_latent, row_idx, head_idx);
                    let q_rope = self.head(&op.q_rope, row_idx, head_idx);
                    let scores: Vec<f64> = latents
                        .iter()
                        .zip(&k_ropes)
                        .map(|(latent, k_rope)| dot(&q_latent, latent) + dot(&q_rope, k_rope))
                        .map(|score| score * f64::from(op.scale))
                        .collect();
                    let out = mixed(&softmax(&scores, None), &latents);
                    self.set_head(&op.out, row_idx, head_idx, &out);
                }
            }
        }
    }
}

impl ReferenceBackend {
    /// Returns the positions that a row attends to; `None` if their choice failed.
    fn chosen(
        &self,
        chosen: Option<&ChosenPositions>,
        row_idx: usize,
        position: usize,
    ) -> Option<Vec<usize>> {
        let chosen = chosen.filter(|chosen| !chosen.is_all(position));
        let Some(chosen) = chosen else { return Some((0..=position).collect()) };
        let list = self.buffers.head(&chosen.list, row_idx, 0);
        (!list[0].is_nan())
            .then(|| list.iter().map(|&it| ChosenPositions::position_of(it)).collect())
    }
}

/// The two tables of one layer of one session.
struct LayerCache<'a> {
    first: &'a KvTable,
    second: &'a KvTable,
}

impl<'a> LayerCache<'a> {
    fn of(states: &'a HostStates, state: StateId, layer: LayerIdx) -> Self {
        let HostLayerState::Positions { first, second, .. } = states.layer(state, layer) else {
            unreachable!("attention runs on layers that keep positions");
        };
        Self { first, second }
    }
}

/// Returns the vectors of one head at these positions.
pub(super) fn vectors(table: &KvTable, seen: &[usize], head_idx: usize) -> Vec<Vec<f64>> {
    let vector = |&position: &usize| {
        let CachedValues::F32(values) = table.rows(head_idx, &(position..position + 1)).values
        else {
            unreachable!("the reference keeps f32");
        };
        widened(values)
    };
    seen.iter().map(vector).collect()
}

/// Writes one head's key and value (or latent and rotated key) of one position.
fn append(
    states: &mut HostStates,
    (state, layer): (StateId, LayerIdx),
    (position, head_idx): (Position, usize),
    (key, value): (&[f32], &[f32]),
) {
    let HostLayerState::Positions { first, second, .. } = states.layer_mut(state, layer) else {
        unreachable!("attention runs on layers that keep positions");
    };
    first.put(head_idx, position.0, key);
    second.put(head_idx, position.0, value);
}

/// Returns the weights of the scores. A sink takes its share but is not part of the result.
fn softmax(scores: &[f64], sink: Option<f64>) -> Vec<f64> {
    let largest = scores.iter().chain(&sink).copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    for weight in &mut weights {
        *weight /= sum;
    }
    weights
}

/// Returns the weighted sum of the values.
fn mixed(weights: &[f64], values: &[Vec<f64>]) -> Vec<f64> {
    let mut out = vec![0.0; values[0].len()];
    for (&weight, value) in weights.iter().zip(values) {
        for (out, &value) in out.iter_mut().zip(value) {
            *out += weight * value;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::fixture::{Fixture, assert_close};
    use crate::ops::{Heads, LayerState, Op};

    const LN_2: f32 = std::f32::consts::LN_2;
    const LN_3: f32 = 1.098_612_3;

    /// One query head of one channel; the scores of position `i` are `q * k[i]`.
    fn op<R: AsRef<[f32]>>(
        fixture: &mut Fixture,
        q: &[R],
        k: &[&[f32]],
        v: &[&[f32]],
    ) -> Attention {
        let state =
            LayerState::KeyValue { n_heads: k[0].len(), k_cols: k[0].len(), v_cols: v[0].len() };
        fixture.state.layers = vec![state];
        let n_heads = q[0].as_ref().len();
        let q = fixture.input("q", q).split(n_heads);
        let n_kv_heads = k[0].len();
        let k = fixture.input("k", k).split(n_kv_heads);
        let v = fixture.input("v", v).split(n_kv_heads);
        let out = fixture.workspace.buffer("out", n_heads * v.head_dim).split(n_heads);
        let layer = LayerIdx(0);
        Attention { layer, q, k, v, gate: None, out, scale: 1.0, window: None, sinks: None }
    }

    fn run(fixture: &Fixture, op: Attention) -> Vec<Vec<f32>> {
        let out: Heads = op.out;
        fixture.run(Op::Attention(op), out)
    }

    #[test]
    fn rows_attend_to_themselves_and_the_past() {
        let mut fixture = Fixture::default();
        let v: [&[f32]; 3] = [&[6.0, 0.0], &[12.0, 0.0], &[0.0, 24.0]];
        let op = op(&mut fixture, &[&[1.0]; 3], &[&[0.0], &[LN_2], &[LN_3]], &v);
        // Weights 1; 1/3, 2/3; 1/6, 2/6, 3/6.
        let rows = run(&fixture, op.clone());
        assert_close(&rows[0], &[6.0, 0.0]);
        assert_close(&rows[1], &[10.0, 0.0]);
        assert_close(&rows[2], &[5.0, 12.0]);
        // With a window of 2, the last row's weights are 2/5, 3/5.
        let rows = run(&fixture, Attention { window: Some(2), ..op });
        assert_close(&rows[1], &[10.0, 0.0]);
        assert_close(&rows[2], &[4.8, 14.4]);
        // A scale of 2 squares the ratios: 1/14, 4/14, 9/14.
        let rows = run(&fixture, Attention { scale: 2.0, ..op });
        assert_close(&rows[2], &[54.0 / 14.0, 216.0 / 14.0]);
    }

    #[test]
    fn sinks_take_weight_and_gates_close() {
        let mut fixture = Fixture::default();
        let mut op = op(&mut fixture, &[&[1.0]; 2], &[&[0.0], &[LN_2]], &[&[6.0], &[12.0]]);
        op.sinks = Some(fixture.vector(&[LN_3]));
        op.gate = Some(fixture.input("gate", &[&[0.0], &[LN_3]]));
        // Weights 1/4 (sink 3/4) and 1/6, 2/6 (sink 3/6); gates 1/2 and 3/4.
        let rows = run(&fixture, op);
        assert_close(&rows[0], &[0.75]);
        assert_close(&rows[1], &[3.75]);
    }

    #[test]
    fn neighbouring_queries_share_a_key() {
        let mut fixture = Fixture::default();
        let q: [&[f32]; 2] = [&[1.0, 0.0, 1.0, 0.0]; 2];
        let k: [&[f32]; 2] = [&[0.0, 0.0], &[LN_2, LN_3]];
        let op = op(&mut fixture, &q, &k, &[&[0.0, 0.0], &[6.0, 12.0]]);
        assert_close(&run(&fixture, op)[1], &[4.0, 3.0, 9.0, 6.0]);
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let mut fixture = Fixture::default();
        let k: [&[f32]; 2] = [&[1e4], &[1e4]];
        let op = op(&mut fixture, &[&[1e4]; 2], &k, &[&[1.0], &[3.0]]);
        assert_close(&run(&fixture, op)[1], &[2.0]);
    }

    #[test]
    fn latents_are_keys_and_values() {
        let mut fixture = Fixture::default();
        fixture.state.layers =
            vec![LayerState::Latent { latent_cols: 2, rope_cols: 1, index_cols: 0 }];
        let latent = fixture.input("latent", &[&[0.0, 6.0], &[LN_2, 12.0]]);
        let k_rope = fixture.input("k_rope", &[&[0.0], &[LN_3]]);
        let q_latent = fixture.input("q_latent", &[&[1.0, 0.0, 0.0, 0.0]; 2]).split(2);
        let q_rope = fixture.input("q_rope", &[&[0.0, 1.0]; 2]).split(2);
        let out = fixture.workspace.buffer("out", 4).split(2);
        let layer = LayerIdx(0);
        let (scale, chosen) = (1.0, None);
        let op = MlaAttention { layer, q_latent, q_rope, latent, k_rope, out, scale, chosen };
        // Head 0 weights by the latent: 1/3, 2/3; head 1 by the rope: 1/4, 3/4.
        let rows = fixture.run(Op::MlaAttention(op), out);
        assert_close(&rows[0], &[0.0, 6.0, 0.0, 6.0]);
        let ln_2 = f64::from(LN_2);
        assert_close(&rows[1], &[ln_2 * 2.0 / 3.0, 10.0, ln_2 * 0.75, 10.5]);
    }
}
