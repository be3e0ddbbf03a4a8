//! Chooses experts: logits in, indices and weights out, ascending by index within a row.
//!
//! **Invariant:** ties go to the lower index; a row's choice depends only on its own logits.

use moeflux_kernels::{KernelTable, RowOp};

use crate::backend::cpu::{PlanExecutor, Worker, grown};
use crate::ids::ExpertIdx;
use crate::ops::{Purpose, Route, RouterKind};

/// DeepSeek's guard against a zero sum.
const SUM_EPSILON: f32 = 1e-20;

impl PlanExecutor {
    pub(super) fn route(&mut self, op: &Route, n_rows: usize) {
        let correction = match op.kind {
            RouterKind::Softmax { .. } => &[],
            RouterKind::SigmoidGrouped { correction, .. } => self.common.weights.vector(correction),
        };
        let (common, buffers) = (&self.common, &self.buffers);
        let routes = match op.purpose {
            Purpose::Compute => {
                self.experts.begin();
                &mut self.routes
            }
            Purpose::Prefetch => &mut self.guessed,
        };
        routes.top_k = op.top_k;
        routes.experts.resize(n_rows * op.top_k, ExpertIdx(0));
        routes.weights.resize(n_rows * op.top_k, 0.0);
        let both = (routes.experts.as_mut_slice(), routes.weights.as_mut_slice());
        let cost = 4 * op.logits.head_dim;
        common.split.pairs(both, n_rows, cost, &|row_idx, experts, weights| {
            let logits = buffers.head(&op.logits, row_idx, 0);
            let mut worker = common.worker();
            let Worker { values, indices, .. } = &mut *worker;
            let mut router = RowRouter { table: common.table, logits, values, best: indices };
            match op.kind {
                RouterKind::Softmax { renormalise } => {
                    router.softmax(renormalise, (experts, weights));
                }
                RouterKind::SigmoidGrouped {
                    n_groups, n_groups_kept, renormalise, factor, ..
                } => {
                    router.sigmoid(correction, (n_groups, n_groups_kept), (experts, weights));
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

/// Routes one row: its logits, and scratch.
struct RowRouter<'a> {
    table: &'static KernelTable,
    logits: &'a [f32],
    values: &'a mut Vec<f32>,
    best: &'a mut Vec<usize>,
}

impl RowRouter<'_> {
    /// Computes softmax weights. Softmax preserves the order of the logits, so the choice uses the
    /// logits.
    fn softmax(&mut self, renormalise: bool, (experts, weights): (&mut [ExpertIdx], &mut [f32])) {
        let Self { table, logits, values, best } = self;
        choose(best, logits, experts);
        for (weight, expert) in weights.iter_mut().zip(&*experts) {
            *weight = logits[expert.0];
        }
        let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        table.exp_shifted(weights, max);
        let sum = if renormalise {
            weights.iter().sum()
        } else {
            let all = grown(values, logits.len(), 0.0);
            all.copy_from_slice(logits);
            table.exp_shifted(all, max)
        };
        weights.iter_mut().for_each(|it| *it /= sum);
    }

    /// Computes sigmoid weights. Corrections affect the choice, not the weights.
    fn sigmoid(
        &mut self,
        correction: &[f32],
        (n_groups, n_groups_kept): (usize, usize),
        (experts, weights): (&mut [ExpertIdx], &mut [f32]),
    ) {
        let Self { table, logits, values, best } = self;
        let n_experts = logits.len();
        let values = grown(values, 2 * n_experts + n_groups, 0.0);
        let (scores, values) = values.split_at_mut(n_experts);
        let (choices, group_scores) = values.split_at_mut(n_experts);
        scores.copy_from_slice(logits);
        table.apply(&RowOp::Sigmoid, scores);
        choices.copy_from_slice(scores);
        table.axpy(1.0, correction, choices);
        let group_len = n_experts / n_groups;
        if n_groups_kept < n_groups {
            for (score, group) in group_scores.iter_mut().zip(choices.chunks_exact(group_len)) {
                *score = sum_of_two_best(group);
            }
            rank(best, group_scores, n_groups_kept);
            for (group_idx, group) in choices.chunks_exact_mut(group_len).enumerate() {
                if !best.contains(&group_idx) {
                    group.fill(f32::NEG_INFINITY);
                }
            }
        }
        choose(best, choices, experts);
        for (weight, expert) in weights.iter_mut().zip(experts) {
            *weight = scores[expert.0];
        }
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

/// Writes the indices of the largest scores, ascending, to `experts`.
fn choose(best: &mut Vec<usize>, scores: &[f32], experts: &mut [ExpertIdx]) {
    rank(best, scores, experts.len());
    best.sort_unstable();
    for (expert, &idx) in experts.iter_mut().zip(&*best) {
        *expert = ExpertIdx(idx);
    }
}

/// Writes the indices of the `n` largest scores to `best`, largest first; of equal scores the lower
/// index first.
///
/// One pass suffices: a row has hundreds of scores, few of which are ever among the best.
fn rank(best: &mut Vec<usize>, scores: &[f32], n: usize) {
    assert!((1..=scores.len()).contains(&n), "{n} of {} scores", scores.len());
    best.clear();
    let mut least = i32::MIN;
    for (idx, &score) in scores.iter().enumerate() {
        let key = order(score);
        if best.len() == n {
            if key <= least {
                continue;
            }
            best.pop();
        }
        let place = best.partition_point(|&other| order(scores[other]) >= key);
        best.insert(place, idx);
        least = best.last().map_or(i32::MIN, |&last| order(scores[last]));
    }
}

/// Maps scores to integers in the same total order. Adding 0 makes the two zeros equal.
#[expect(clippy::cast_possible_wrap, reason = "the same bits")]
fn order(score: f32) -> i32 {
    let bits = (score + 0.0).to_bits() as i32;
    // Of two negative numbers the larger has the smaller magnitude.
    bits ^ (bits >> 31 & i32::MAX)
}
