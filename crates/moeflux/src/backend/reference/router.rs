//! Routers: derive from logits the experts of each row, ascending by index, and their weights.
//!
//! **Invariant:** each row has exactly `top_k` different experts; of equal values the lower index
//! is chosen. Choices compare f32 values, as transformers does, so ties are ties of f32.

use super::{ReferenceBackend, rounded, sigmoid, widened};
use crate::ids::ExpertIdx;
use crate::ops::{Purpose, Route, RouterKind, Routes};

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
                RouterKind::SigmoidGrouped {
                    correction,
                    n_groups,
                    n_groups_kept,
                    renormalise,
                    factor,
                } => {
                    let scores = sigmoids(logits);
                    let mut choices = corrected(&scores, self.weights.vector(correction));
                    exclude_groups(&mut choices, n_groups, n_groups_kept);
                    let chosen = largest(&choices, op.top_k);
                    sigmoid_weights(&scores, &chosen, renormalise, factor)
                }
            };
            chosen.sort_unstable_by_key(|&(expert_idx, _)| expert_idx);
            for (expert_idx, weight) in chosen {
                routes.experts.push(ExpertIdx(expert_idx));
                routes.weights.push(rounded(weight));
            }
        }
        match op.purpose {
            Purpose::Compute => self.routes = routes,
            Purpose::Prefetch => self.guessed = routes,
        }
    }
}

/// Returns softmax weights. Softmax preserves the order of the logits, so the choice uses the
/// logits.
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

fn sigmoids(logits: &[f32]) -> Vec<f32> {
    widened(logits).iter().map(|&logit| rounded(sigmoid(logit))).collect()
}

fn corrected(scores: &[f32], correction: &[f32]) -> Vec<f32> {
    assert_eq!(scores.len(), correction.len(), "a correction per expert");
    scores.iter().zip(correction).map(|(score, correction)| score + correction).collect()
}

/// Keeps the `n_kept` groups whose two best choices have the largest sum.
fn exclude_groups(choices: &mut [f32], n_groups: usize, n_kept: usize) {
    assert!(choices.len().is_multiple_of(n_groups), "groups are equal");
    let group_len = choices.len() / n_groups;
    let group_scores: Vec<f32> = choices.chunks(group_len).map(sum_of_two_best).collect();
    let kept = largest(&group_scores, n_kept);
    for (expert_idx, choice) in choices.iter_mut().enumerate() {
        if !kept.contains(&(expert_idx / group_len)) {
            *choice = f32::NEG_INFINITY;
        }
    }
}

/// Returns weights from the scores of the chosen, without their corrections.
fn sigmoid_weights(
    scores: &[f32],
    chosen: &[usize],
    renormalise: bool,
    factor: f32,
) -> Vec<(usize, f64)> {
    let score = |expert_idx: usize| f64::from(scores[expert_idx]);
    let sum: f64 = chosen.iter().map(|&expert_idx| score(expert_idx)).sum();
    let divisor = if renormalise { sum + 1e-20 } else { 1.0 };
    let weight = |expert_idx| score(expert_idx) / divisor * f64::from(factor);
    chosen.iter().map(|&expert_idx| (expert_idx, weight(expert_idx))).collect()
}

/// Returns the indices of the `n` largest values, largest first; of equal values the lower index
/// first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::reference::fixture::{Fixture, assert_close};
    use crate::ops::Op;

    const LN_2: f32 = std::f32::consts::LN_2;
    const LN_3: f32 = 1.098_612_3;

    fn routes(logits: &[&[f32]], top_k: usize, kind: RouterKind) -> Routes {
        let mut fixture = Fixture::default();
        let logits = fixture.input("logits", logits);
        routes_of(&fixture, Route { logits, kind, top_k, purpose: Purpose::Compute })
    }

    fn routes_of(fixture: &Fixture, op: Route) -> Routes {
        let (mut backend, state) = fixture.backend();
        fixture.step(&mut backend, state, Op::Route(op));
        backend.routes(Purpose::Compute).unwrap().clone()
    }

    fn indices(routes: &Routes) -> Vec<usize> {
        routes.experts.iter().map(|expert| expert.0).collect()
    }

    #[test]
    fn softmax_over_all_or_over_the_chosen() {
        let logits: [&[f32]; 2] = [&[0.0, LN_3, LN_2, 0.0], &[LN_2, 0.0, 0.0, LN_3]];
        let all = routes(&logits, 2, RouterKind::Softmax { renormalise: false });
        assert_eq!(indices(&all), [1, 2, 0, 3]);
        assert_close(&all.weights, &[3.0 / 7.0, 2.0 / 7.0, 2.0 / 7.0, 3.0 / 7.0]);
        let chosen = routes(&logits, 2, RouterKind::Softmax { renormalise: true });
        assert_close(&chosen.weights, &[0.6, 0.4, 0.4, 0.6]);
    }

    #[test]
    fn the_lower_index_wins_a_tie() {
        let logits: [&[f32]; 3] =
            [&[1.0, 1.0, 1.0, 1.0], &[0.0, 2.0, 1.0, 1.0], &[0.0, -0.0, 0.0, 5.0]];
        let routes = routes(&logits, 2, RouterKind::Softmax { renormalise: true });
        assert_eq!(indices(&routes), [0, 1, 1, 2, 0, 3]);
    }

    #[test]
    fn more_than_eight_experts_are_all_kept() {
        let logits: Vec<f32> = (0_u8..32).map(f32::from).collect();
        let routes = routes(&[&logits], 22, RouterKind::Softmax { renormalise: true });
        assert_eq!(indices(&routes), (10..32).collect::<Vec<usize>>());
        assert_close(&[routes.weights.iter().sum()], &[1.0]);
    }

    fn grouped(fixture: &mut Fixture, logits: &[f32], correction: &[f32]) -> Route {
        let kind = RouterKind::SigmoidGrouped {
            correction: fixture.vector(correction),
            n_groups: 3,
            n_groups_kept: 1,
            renormalise: false,
            factor: 1.0,
        };
        Route {
            logits: fixture.input("logits", &[logits]),
            kind,
            top_k: 2,
            purpose: Purpose::Compute,
        }
    }

    #[test]
    fn groups_compete_by_their_two_best() {
        let mut fixture = Fixture::default();
        // Group 1 lacks the single best expert but has the largest sum of two.
        let correction = [0.9, 0.0, 0.0, 0.6, 0.0, 0.6, 0.0, 0.8, 0.2];
        let mut op = grouped(&mut fixture, &[0.0; 9], &correction);
        assert_eq!(indices(&routes_of(&fixture, op.clone())), [3, 5]);
        // Two groups are kept: 1, and of 0 and 2 (scores 1.9 and 2.0) the better one, 2.
        op.top_k = 3;
        let RouterKind::SigmoidGrouped { n_groups_kept, .. } = &mut op.kind else {
            unreachable!("made above");
        };
        *n_groups_kept = 2;
        assert_eq!(indices(&routes_of(&fixture, op)), [3, 5, 7]);
    }

    #[test]
    fn tied_groups_go_to_the_lower_one() {
        let mut fixture = Fixture::default();
        let op = grouped(&mut fixture, &[0.0; 9], &[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]);
        assert_eq!(indices(&routes_of(&fixture, op)), [4, 5]);
    }

    #[test]
    fn excluded_groups_lose_to_negative_scores() {
        let mut fixture = Fixture::default();
        // All choices are negative; filling with zero would choose experts of excluded groups.
        let correction = [-9.0, -9.0, -9.0, -3.0, -4.0, -2.0, -8.0, -8.0, -8.0];
        let op = grouped(&mut fixture, &[0.0; 9], &correction);
        assert_eq!(indices(&routes_of(&fixture, op)), [3, 5]);
    }

    #[test]
    fn weights_are_uncorrected_renormalised_then_scaled() {
        let mut fixture = Fixture::default();
        // Sigmoids 1/2, 3/4, 2/3, ...: corrections choose 0 and 2.
        let logits = [0.0, LN_3, LN_2, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0];
        let mut op = grouped(&mut fixture, &logits, &[5.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_close(&routes_of(&fixture, op.clone()).weights, &[0.5, 2.0 / 3.0]);
        let RouterKind::SigmoidGrouped { renormalise, factor, .. } = &mut op.kind else {
            unreachable!("made above");
        };
        (*renormalise, *factor) = (true, 2.5);
        let weights = routes_of(&fixture, op).weights;
        assert_close(&weights, &[2.5 * 3.0 / 7.0, 2.5 * 4.0 / 7.0]);
    }

    #[test]
    fn weights_of_vanished_scores_stay_finite() {
        let mut fixture = Fixture::default();
        let mut op = grouped(&mut fixture, &[-1000.0; 9], &[0.0; 9]);
        let RouterKind::SigmoidGrouped { renormalise, .. } = &mut op.kind else {
            unreachable!("made above");
        };
        *renormalise = true;
        assert_eq!(routes_of(&fixture, op).weights, [0.0, 0.0]);
    }
}
