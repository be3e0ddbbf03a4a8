//! Chooses experts: logits in, indices and weights out, ascending by index within a row.
//!
//! **Invariant:** ties go to the lower index; a row's choice depends on its own logits only.

use std::cmp::Ordering;

use crate::backend::cpu::elementwise::sigmoid;
use crate::backend::cpu::{Machine, Worker, grown};
use crate::ids::ExpertIdx;
use crate::ops::{Route, RouterKind};

/// DeepSeek's guard against a sum of zero.
const SUM_EPSILON: f32 = 1e-20;

impl Machine {
    pub(super) fn route(&mut self, op: &Route, n_rows: usize) {
        let correction = match op.kind {
            RouterKind::Softmax { .. } => &[],
            RouterKind::SigmoidGrouped { correction, .. } => self.common.weights.vector(correction),
        };
        let (common, buffers, routes) = (&self.common, &self.buffers, &mut self.routes);
        routes.top_k = op.top_k;
        routes.experts.resize(n_rows * op.top_k, ExpertIdx(0));
        routes.weights.resize(n_rows * op.top_k, 0.0);
        let both = (routes.experts.as_mut_slice(), routes.weights.as_mut_slice());
        let cost = 16 * op.logits.head_dim;
        common.split.pairs(both, n_rows, cost, &|row_idx, experts, weights| {
            let logits = buffers.head(&op.logits, row_idx, 0);
            let mut worker = common.worker();
            match op.kind {
                RouterKind::Softmax { renormalise } => {
                    softmax_route(&mut worker, logits, (experts, weights));
                    if renormalise {
                        let sum: f32 = weights.iter().sum();
                        weights.iter_mut().for_each(|it| *it /= sum);
                    }
                }
                RouterKind::SigmoidGrouped {
                    n_groups, n_groups_kept, renormalise, factor, ..
                } => {
                    let groups = (n_groups, n_groups_kept);
                    grouped_route(&mut worker, (logits, correction), groups, (experts, weights));
                    if renormalise {
                        let sum = weights.iter().sum::<f32>() + SUM_EPSILON;
                        weights.iter_mut().for_each(|it| *it /= sum);
                    }
                    weights.iter_mut().for_each(|it| *it *= factor);
                }
            }
        });
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn softmax_route(
    worker: &mut Worker,
    logits: &[f32],
    (experts, weights): (&mut [ExpertIdx], &mut [f32]),
) {
    let Worker { values, indices, .. } = worker;
    let scores = grown(values, logits.len(), 0.0);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (score, &logit) in scores.iter_mut().zip(logits) {
        *score = f64::from(logit - max).exp() as f32;
        sum += *score;
    }
    scores.iter_mut().for_each(|it| *it /= sum);
    choose(indices, scores, experts);
    for (weight, expert) in weights.iter_mut().zip(experts) {
        *weight = scores[expert.0];
    }
}

fn grouped_route(
    worker: &mut Worker,
    (logits, correction): (&[f32], &[f32]),
    (n_groups, n_groups_kept): (usize, usize),
    (experts, weights): (&mut [ExpertIdx], &mut [f32]),
) {
    let n_experts = logits.len();
    let Worker { values, indices, .. } = worker;
    let (choices, group_scores) = grown(values, n_experts + n_groups, 0.0).split_at_mut(n_experts);
    for ((choice, &logit), &correction) in choices.iter_mut().zip(logits).zip(correction) {
        *choice = sigmoid(logit) + correction;
    }
    let group_len = n_experts / n_groups;
    for (score, group) in group_scores.iter_mut().zip(choices.chunks_exact(group_len)) {
        *score = sum_of_two_best(group);
    }
    rank(indices, group_scores, n_groups_kept);
    for &excluded in &indices[n_groups_kept..] {
        choices[excluded * group_len..][..group_len].fill(f32::NEG_INFINITY);
    }
    choose(indices, choices, experts);
    for (weight, expert) in weights.iter_mut().zip(experts) {
        *weight = sigmoid(logits[expert.0]);
    }
}

fn sum_of_two_best(group: &[f32]) -> f32 {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &value in group {
        if value > best {
            (best, second) = (value, best);
        } else if value > second {
            second = value;
        }
    }
    best + second
}

/// The largest scores' indices, ascending.
fn choose(indices: &mut Vec<usize>, scores: &[f32], experts: &mut [ExpertIdx]) {
    rank(indices, scores, experts.len());
    indices.truncate(experts.len());
    indices.sort_unstable();
    for (expert, &idx) in experts.iter_mut().zip(&*indices) {
        *expert = ExpertIdx(idx);
    }
}

/// All indices, those of the `n` largest scores first; of equals the lower index.
fn rank(indices: &mut Vec<usize>, scores: &[f32], n: usize) {
    assert!((1..=scores.len()).contains(&n), "{n} of {} scores", scores.len());
    indices.clear();
    indices.extend(0..scores.len());
    indices.select_nth_unstable_by(n - 1, |&a, &b| better_first(scores, a, b));
}

/// A total order, whatever the scores: adding 0 makes the two zeros equal.
fn better_first(scores: &[f32], a: usize, b: usize) -> Ordering {
    (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)).then(a.cmp(&b))
}
