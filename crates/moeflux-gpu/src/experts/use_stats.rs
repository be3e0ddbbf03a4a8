//! Decides which experts should be in device memory: the most used recently.
//!
//! **Invariant:** pure arithmetic on counts. A swap promotes one expert to device memory and
//! demotes another of the same layer to host memory; no expert moves twice in a round. This module
//! knows nothing of memory.

use moeflux::provider::ids::ExpertIdx;

use super::bank::Tier;

/// Score of one use.
const SCORE_PER_USE: u64 = 16;
/// Inverse of the fraction of its score that an expert loses each round.
const DECAY_SHARE: u64 = 16;
/// Minimum difference in score for a swap: fewer uses do not pay for its copy.
const GAIN_MIN: u64 = 6 * SCORE_PER_USE;
/// Upper bound on swaps per round: copies delay the step that follows them.
const N_SWAPS_MAX: usize = 96;

/// An exchange of two experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swap {
    /// Index of the layer, in the order of counts.
    pub(super) layer: usize,
    /// Expert that moves to device memory.
    pub(super) promoted: ExpertIdx,
    /// Expert that moves to host memory, into the other's slot.
    pub(super) demoted: ExpertIdx,
}

/// Result of a round: the swaps to make, and the uses counted since the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RebalanceRound {
    pub(super) swaps: Vec<Swap>,
    /// Uses of experts in device memory, and of all.
    pub(super) uses: [u64; 2],
}

/// Score of one expert: its uses, where older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct UseScore {
    /// Uses counted so far; wraps around.
    n_counted: u32,
    score: u64,
}

/// Scores of all experts of all layers.
#[derive(Debug, Default)]
pub(super) struct UseStats {
    layers: Vec<Vec<UseScore>>,
}

impl UseStats {
    /// Evaluates a round. Takes, by layer, the total count of each expert and its memory.
    pub(super) fn round<'a>(
        &mut self,
        layers: impl Iterator<Item = (&'a [u32], &'a [Tier])>,
    ) -> RebalanceRound {
        let mut round = RebalanceRound::default();
        let mut gains: Vec<(u64, Swap)> = Vec::new();
        for (layer, (counts, tiers)) in layers.enumerate() {
            if layer == self.layers.len() {
                self.layers.push(vec![UseScore::default(); counts.len()]);
            }
            let scores = &mut self.layers[layer];
            for ((expert, &count), tier) in scores.iter_mut().zip(counts).zip(tiers) {
                let n_new = u64::from(count.wrapping_sub(expert.n_counted));
                expert.n_counted = count;
                expert.score -= expert.score / DECAY_SHARE;
                expert.score += n_new * SCORE_PER_USE;
                round.uses[0] += if *tier == Tier::Device { n_new } else { 0 };
                round.uses[1] += n_new;
            }
            gains.extend(gains_of(layer, scores, tiers));
        }
        gains.sort_by_key(|(gain, swap)| (u64::MAX - gain, swap.layer, swap.promoted));
        round.swaps = gains.into_iter().take(N_SWAPS_MAX).map(|(_, swap)| swap).collect();
        round
    }
}

/// Pairs the experts of host memory with the highest scores with those of device memory with the
/// lowest, as long as a swap pays.
fn gains_of(layer: usize, scores: &[UseScore], tiers: &[Tier]) -> Vec<(u64, Swap)> {
    let of_tier = |tier: Tier| {
        let there = tiers.iter().enumerate().filter(move |(_, it)| **it == tier);
        let mut found: Vec<(u64, ExpertIdx)> =
            there.map(|(expert, _)| (scores[expert].score, ExpertIdx(expert))).collect();
        found.sort_unstable();
        found
    };
    let (on_device, on_host) = (of_tier(Tier::Device), of_tier(Tier::Host));
    let pairs = on_device.into_iter().zip(on_host.into_iter().rev());
    let gains = pairs.map(|((lowest, demoted), (highest, promoted))| {
        (highest.saturating_sub(lowest), Swap { layer, promoted, demoted })
    });
    gains.take_while(|(gain, _)| *gain >= GAIN_MIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a layer whose first experts are in device memory.
    fn tiers(n_on_device: usize, n: usize) -> Vec<Tier> {
        (0..n).map(|it| if it < n_on_device { Tier::Device } else { Tier::Host }).collect()
    }

    fn apply(swaps: &[Swap], layers: &mut [Vec<Tier>]) {
        for swap in swaps {
            let tiers = &mut layers[swap.layer];
            assert_eq!(tiers[swap.promoted.0], Tier::Host, "{swap:?}");
            assert_eq!(tiers[swap.demoted.0], Tier::Device, "{swap:?}");
            tiers[swap.promoted.0] = Tier::Device;
            tiers[swap.demoted.0] = Tier::Host;
        }
    }

    fn round(stats: &mut UseStats, counts: &[Vec<u32>], layers: &[Vec<Tier>]) -> RebalanceRound {
        stats.round(counts.iter().map(Vec::as_slice).zip(layers.iter().map(Vec::as_slice)))
    }

    #[test]
    fn the_most_used_experts_are_promoted_and_then_nothing_moves() {
        let mut stats = UseStats::default();
        let mut layers = vec![tiers(2, 6), tiers(2, 6)];
        let per_round: [[u32; 6]; 2] = [[1, 2, 30, 3, 40, 1], [50, 1, 1, 1, 1, 20]];
        // The counts wrap around during the test.
        let mut counts = vec![vec![u32::MAX - 60; 6]; 2];
        round(&mut stats, &counts, &layers);
        stats.layers.iter_mut().flatten().for_each(|it| it.score = 0);
        let mut last = RebalanceRound::default();
        for _ in 0..4 {
            for (counts, more) in counts.iter_mut().zip(per_round) {
                counts.iter_mut().zip(more).for_each(|(it, more)| *it = it.wrapping_add(more));
            }
            last = round(&mut stats, &counts, &layers);
            apply(&last.swaps, &mut layers);
        }
        let on_device = |layer: usize| -> Vec<usize> {
            (0..6).filter(|expert| layers[layer][*expert] == Tier::Device).collect()
        };
        assert_eq!((on_device(0), on_device(1)), (vec![2, 4], vec![0, 5]));
        assert_eq!(last, RebalanceRound { swaps: Vec::new(), uses: [140, 151] });
    }

    #[test]
    fn slightly_more_uses_cause_no_swap() {
        let mut stats = UseStats::default();
        let layers = vec![tiers(1, 2)];
        assert_eq!(round(&mut stats, &[vec![5, 10]], &layers).swaps, []);
        let swap = Swap { layer: 0, promoted: ExpertIdx(1), demoted: ExpertIdx(0) };
        assert_eq!(round(&mut stats, &[vec![5, 12]], &layers).swaps, [swap]);
    }

    #[test]
    fn experts_used_long_ago_are_demoted() {
        let mut stats = UseStats::default();
        let layers = vec![tiers(1, 2)];
        round(&mut stats, &[vec![1000, 0]], &layers);
        let rounds = (1_u32..100).find(|n| {
            let swaps = round(&mut stats, &[vec![1000, 8 * n]], &layers).swaps;
            !swaps.is_empty()
        });
        assert!(rounds.is_some_and(|n| (5..40).contains(&n)), "{rounds:?}");
    }

    #[test]
    fn a_round_has_a_bound_and_takes_the_best() {
        let mut stats = UseStats::default();
        let n = 4 * N_SWAPS_MAX;
        let layers = vec![tiers(n / 2, n)];
        let counts = (0..n).map(|it| u32::try_from(it).unwrap()).collect();
        let swaps = round(&mut stats, &[counts], &layers).swaps;
        assert_eq!(swaps.len(), N_SWAPS_MAX);
        let best = Swap { layer: 0, promoted: ExpertIdx(n - 1), demoted: ExpertIdx(0) };
        assert_eq!(swaps[0], best);
        apply(&swaps, &mut layers.clone());
    }
}
