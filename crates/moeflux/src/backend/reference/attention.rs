//! Attention over a session's positions: softmax with grouped heads, and MLA in absorbed form.
//!
//! **Invariant:** one pass over all positions that a row sees, from the first to its own.

use std::ops::Range;

use super::{ReferenceBackend, dot, sigmoid, widened};
use crate::backend::host::{LayerMemory, States};
use crate::ids::{LayerIdx, Position, StateId};
use crate::ops::{Attention, Batch, MlaAttention};

impl ReferenceBackend {
    pub(super) fn attention(&mut self, op: &Attention, batch: &Batch<'_>) {
        assert_eq!(op.k.n_heads, op.v.n_heads, "a value per key");
        assert_eq!(op.q.n_heads, op.out.n_heads, "an output per query");
        assert!(op.q.n_heads.is_multiple_of(op.k.n_heads), "queries share keys evenly");
        let n_queries_per_key = op.q.n_heads / op.k.n_heads;
        let sinks = op.sinks.map(|sinks| widened(self.weights.vector(sinks)));
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position;
                self.append_keys(op, segment.state, row_idx, position);
                let n_seen = op.window.unwrap_or(usize::MAX).min(position.0 + 1);
                let seen = position.0 + 1 - n_seen..position.0 + 1;
                for head_idx in 0..op.q.n_heads {
                    let key_head_idx = head_idx / n_queries_per_key;
                    let cache = Cache::of(&self.states, segment.state, op.layer);
                    let keys = cache.first(&seen, key_head_idx, op.k.head_dim);
                    let values = cache.second(&seen, key_head_idx, op.v.head_dim);
                    let q = self.head(&op.q, row_idx, head_idx);
                    let scale = f64::from(op.scale);
                    let scores: Vec<f64> = keys.iter().map(|k| dot(&q, k) * scale).collect();
                    let sink = sinks.as_ref().map(|sinks| sinks[head_idx]);
                    let mut out = mixed(&softmax(&scores, sink), &values);
                    if let Some(gate) = &op.gate {
                        let gate = self.head(gate, row_idx, head_idx);
                        for (out, &gate) in out.iter_mut().zip(&gate) {
                            *out *= sigmoid(gate);
                        }
                    }
                    self.set_head(&op.out, row_idx, head_idx, &out);
                }
            }
        }
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
                let seen = 0..position.0 + 1;
                let cache = Cache::of(&self.states, segment.state, op.layer);
                let latents = cache.first(&seen, 0, op.latent.head_dim);
                let k_ropes = cache.second(&seen, 0, op.k_rope.head_dim);
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

/// The two tables of one layer of one session.
struct Cache<'a> {
    first_cols: usize,
    first: &'a [f32],
    second_cols: usize,
    second: &'a [f32],
}

impl<'a> Cache<'a> {
    fn of(states: &'a States, state: StateId, layer: LayerIdx) -> Self {
        let LayerMemory::Positions { first_cols, first, second_cols, second } =
            states.layer(state, layer)
        else {
            unreachable!("attention runs on layers that keep positions");
        };
        Self { first_cols: *first_cols, first, second_cols: *second_cols, second }
    }

    /// One head's keys (or latents) of the positions in `seen`.
    fn first(&self, seen: &Range<usize>, head_idx: usize, head_dim: usize) -> Vec<Vec<f64>> {
        let at = |position| &self.first[position * self.first_cols + head_idx * head_dim..];
        seen.clone().map(|position| widened(&at(position)[..head_dim])).collect()
    }

    /// One head's values (or rotated keys) of the positions in `seen`.
    fn second(&self, seen: &Range<usize>, head_idx: usize, head_dim: usize) -> Vec<Vec<f64>> {
        let at = |position| &self.second[position * self.second_cols + head_idx * head_dim..];
        seen.clone().map(|position| widened(&at(position)[..head_dim])).collect()
    }
}

/// Writes one head's key and value (or latent and rotated key) of one position.
fn append(
    states: &mut States,
    (state, layer): (StateId, LayerIdx),
    (position, head_idx): (Position, usize),
    (key, value): (&[f32], &[f32]),
) {
    let LayerMemory::Positions { first_cols, first, second_cols, second } =
        states.layer_mut(state, layer)
    else {
        unreachable!("attention runs on layers that keep positions");
    };
    let first_at = position.0 * *first_cols + head_idx * key.len();
    first[first_at..][..key.len()].copy_from_slice(key);
    let second_at = position.0 * *second_cols + head_idx * value.len();
    second[second_at..][..value.len()].copy_from_slice(value);
}

/// The weights of the scores; a sink takes its share and is left out of the result.
fn softmax(scores: &[f64], sink: Option<f64>) -> Vec<f64> {
    let largest = scores.iter().chain(&sink).copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    for weight in &mut weights {
        *weight /= sum;
    }
    weights
}

/// The weighted sum of the values.
fn mixed(weights: &[f64], values: &[Vec<f64>]) -> Vec<f64> {
    let mut out = vec![0.0; values[0].len()];
    for (&weight, value) in weights.iter().zip(values) {
        for (out, &value) in out.iter_mut().zip(value) {
            *out += weight * value;
        }
    }
    out
}
