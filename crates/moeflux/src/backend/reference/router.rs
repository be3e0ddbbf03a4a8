//! Routers: logits to the experts of each row, ascending by index, and their weights.
//!
//! **Invariant:** exactly `top_k` different experts per row; among equals the lower index is
//! chosen. Choices compare f32 values, as transformers does: ties are the ties of f32.

use super::{ReferenceBackend, rounded, sigmoid, widened};
use crate::ids::{ExpertIdx, VectorId};
use crate::ops::{Route, RouterKind, Routes};

impl ReferenceBackend {
    pub(super) fn route(&mut self, op: &Route, n_rows: usize) {
        let n_experts = op.logits.head_dim;
        assert!(op.top_k <= n_experts, "{} of {n_experts} experts", op.top_k);
        let mut routes = Routes { top_k: op.top_k, ..Routes::default() };
        for row_idx in 0..n_rows {
            let logits = self.buffers.head(&op.logits, row_idx, 0);
            let mut chosen = match op.kind {
                RouterKind::Softmax { renormalise } => {
                    let chosen = largest(logits, op.top_k);
                    softmax_weights(logits, &chosen, renormalise)
                }
                RouterKind::SigmoidGrouped { .. } => self.sigmoid_grouped(op, logits),
            };
            chosen.sort_unstable_by_key(|&(expert_idx, _)| expert_idx);
            for (expert_idx, weight) in chosen {
                routes.experts.push(ExpertIdx(expert_idx));
                routes.weights.push(rounded(weight));
            }
        }
        self.routes = routes;
    }

    fn sigmoid_grouped(&self, op: &Route, logits: &[f32]) -> Vec<(usize, f64)> {
        let RouterKind::SigmoidGrouped { correction, n_groups, n_groups_kept, renormalise, factor } =
            op.kind
        else {
            unreachable!("called for this kind alone");
        };
        let scores: Vec<f32> = widened(logits).iter().map(|&x| rounded(sigmoid(x))).collect();
        let mut choices = self.corrected(&scores, correction);
        assert!(choices.len().is_multiple_of(n_groups), "groups are equal");
        let group_len = choices.len() / n_groups;
        let group_scores: Vec<f32> = choices.chunks(group_len).map(sum_of_two_best).collect();
        let kept = largest(&group_scores, n_groups_kept);
        for (expert_idx, choice) in choices.iter_mut().enumerate() {
            if !kept.contains(&(expert_idx / group_len)) {
                *choice = f32::NEG_INFINITY;
            }
        }
        let chosen = largest(&choices, op.top_k);
        let weight = |expert_idx: usize| f64::from(scores[expert_idx]);
        let sum: f64 = chosen.iter().map(|&expert_idx| weight(expert_idx)).sum();
        let divisor = if renormalise { sum + 1e-20 } else { 1.0 };
        let scaled = |expert_idx| weight(expert_idx) / divisor * f64::from(factor);
        chosen.into_iter().map(|expert_idx| (expert_idx, scaled(expert_idx))).collect()
    }

    fn corrected(&self, scores: &[f32], correction: VectorId) -> Vec<f32> {
        let correction = self.weights.vector(correction);
        assert_eq!(scores.len(), correction.len(), "a correction per expert");
        scores.iter().zip(correction).map(|(score, correction)| score + correction).collect()
    }
}

/// Softmax over all logits; its order is the order of the logits, so that these choose.
fn softmax_weights(logits: &[f32], chosen: &[usize], renormalise: bool) -> Vec<(usize, f64)> {
    let logits = widened(logits);
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let divisor: f64 = if renormalise {
        chosen.iter().map(|&expert_idx| exponentials[expert_idx]).sum()
    } else {
        exponentials.iter().sum()
    };
    let weight = |expert_idx: usize| exponentials[expert_idx] / divisor;
    chosen.iter().map(|&expert_idx| (expert_idx, weight(expert_idx))).collect()
}

/// The indices of the `n` largest values, best first; among equals the lower index.
fn largest(values: &[f32], n: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::with_capacity(n);
    for _ in 0..n {
        let mut best = None;
        for idx in (0..values.len()).filter(|idx| !chosen.contains(idx)) {
            if best.is_none_or(|best: usize| values[idx] > values[best]) {
                best = Some(idx);
            }
        }
        chosen.push(best.expect("at most as many are chosen as there are"));
    }
    chosen
}

fn sum_of_two_best(choices: &[f32]) -> f32 {
    largest(choices, choices.len().min(2)).iter().map(|&idx| choices[idx]).sum()
}
