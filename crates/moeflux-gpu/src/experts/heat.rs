//! Decides which experts should be near: the most used recently.
//!
//! **Invariant:** pure arithmetic on counts. A swap brings one expert near and sends another of the
//! same layer far; no expert moves twice in a round. Knows nothing of memory.

use moeflux::provider::ids::ExpertIdx;

use super::bank::Tier;

/// Worth of one use.
const USE: u64 = 16;
/// Inverse of the fraction of its worth that an expert loses each round.
const DECAY_SHARE: u64 = 16;
/// Minimum difference in worth for a swap: fewer uses do not pay for its copy.
const GAIN_MIN: u64 = 6 * USE;
/// Upper bound on swaps per round: copies delay the step that follows them.
const N_SWAPS_MAX: usize = 96;

/// An exchange of two experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swap {
    /// Index of the layer, in the order of counts.
    pub(super) layer: usize,
    /// Expert that moves near.
    pub(super) arrives: ExpertIdx,
    /// Expert that moves far, into its slot.
    pub(super) leaves: ExpertIdx,
}

/// Result of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) swaps: Vec<Swap>,
    /// Uses of near experts, and of all.
    pub(super) uses: [u64; 2],
}

/// Statistics of one expert.
#[derive(Clone, Copy, Debug, Default)]
struct Warmth {
    /// Uses counted so far; wraps around.
    n_seen: u32,
    worth: u64,
}

/// Statistics of all experts of all layers.
#[derive(Debug, Default)]
pub(super) struct Heat {
    layers: Vec<Vec<Warmth>>,
}

impl Heat {
    /// Evaluates a round. Takes, by layer, the total count of each expert and its memory.
    pub(super) fn round<'a>(
        &mut self,
        layers: impl Iterator<Item = (&'a [u32], &'a [Tier])>,
    ) -> Round {
        let mut round = Round::default();
        let mut gains: Vec<(u64, Swap)> = Vec::new();
        for (layer, (counts, tiers)) in layers.enumerate() {
            if layer == self.layers.len() {
                self.layers.push(vec![Warmth::default(); counts.len()]);
            }
            let warmths = &mut self.layers[layer];
            for ((warmth, &count), tier) in warmths.iter_mut().zip(counts).zip(tiers) {
                let n_new = u64::from(count.wrapping_sub(warmth.n_seen));
                warmth.n_seen = count;
                warmth.worth -= warmth.worth / DECAY_SHARE;
                warmth.worth += n_new * USE;
                round.uses[0] += if *tier == Tier::Near { n_new } else { 0 };
                round.uses[1] += n_new;
            }
            gains.extend(gains_of(layer, warmths, tiers));
        }
        gains.sort_by_key(|(gain, swap)| (u64::MAX - gain, swap.layer, swap.arrives));
        round.swaps = gains.into_iter().take(N_SWAPS_MAX).map(|(_, swap)| swap).collect();
        round
    }
}

/// Pairs the warmest far experts with the coldest near ones, as long as a swap pays.
fn gains_of(layer: usize, warmths: &[Warmth], tiers: &[Tier]) -> Vec<(u64, Swap)> {
    let of_tier = |tier: Tier| {
        let there = tiers.iter().enumerate().filter(move |(_, it)| **it == tier);
        let mut found: Vec<(u64, ExpertIdx)> =
            there.map(|(expert, _)| (warmths[expert].worth, ExpertIdx(expert))).collect();
        found.sort_unstable();
        found
    };
    let (near, far) = (of_tier(Tier::Near), of_tier(Tier::Far));
    let pairs = near.into_iter().zip(far.into_iter().rev());
    let gains = pairs.map(|((cold, leaves), (warm, arrives))| {
        (warm.saturating_sub(cold), Swap { layer, arrives, leaves })
    });
    gains.take_while(|(gain, _)| *gain >= GAIN_MIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a layer whose first experts are near.
    fn tiers(n_near: usize, n: usize) -> Vec<Tier> {
        (0..n).map(|it| if it < n_near { Tier::Near } else { Tier::Far }).collect()
    }

    fn apply(swaps: &[Swap], layers: &mut [Vec<Tier>]) {
        for swap in swaps {
            let tiers = &mut layers[swap.layer];
            assert_eq!(tiers[swap.arrives.0], Tier::Far, "{swap:?}");
            assert_eq!(tiers[swap.leaves.0], Tier::Near, "{swap:?}");
            tiers[swap.arrives.0] = Tier::Near;
            tiers[swap.leaves.0] = Tier::Far;
        }
    }

    fn round(heat: &mut Heat, counts: &[Vec<u32>], layers: &[Vec<Tier>]) -> Round {
        heat.round(counts.iter().map(Vec::as_slice).zip(layers.iter().map(Vec::as_slice)))
    }

    #[test]
    fn what_is_used_most_comes_near_and_then_all_is_quiet() {
        let mut heat = Heat::default();
        let mut layers = vec![tiers(2, 6), tiers(2, 6)];
        let per_round: [[u32; 6]; 2] = [[1, 2, 30, 3, 40, 1], [50, 1, 1, 1, 1, 20]];
        // The counts wrap around during the test.
        let mut counts = vec![vec![u32::MAX - 60; 6]; 2];
        round(&mut heat, &counts, &layers);
        heat.layers.iter_mut().flatten().for_each(|it| it.worth = 0);
        let mut last = Round::default();
        for _ in 0..4 {
            for (counts, more) in counts.iter_mut().zip(per_round) {
                counts.iter_mut().zip(more).for_each(|(it, more)| *it = it.wrapping_add(more));
            }
            last = round(&mut heat, &counts, &layers);
            apply(&last.swaps, &mut layers);
        }
        let near = |layer: usize| -> Vec<usize> {
            (0..6).filter(|expert| layers[layer][*expert] == Tier::Near).collect()
        };
        assert_eq!((near(0), near(1)), (vec![2, 4], vec![0, 5]));
        assert_eq!(last, Round { swaps: Vec::new(), uses: [140, 151] });
    }

    #[test]
    fn few_uses_more_move_nobody() {
        let mut heat = Heat::default();
        let layers = vec![tiers(1, 2)];
        assert_eq!(round(&mut heat, &[vec![5, 10]], &layers).swaps, []);
        let swap = Swap { layer: 0, arrives: ExpertIdx(1), leaves: ExpertIdx(0) };
        assert_eq!(round(&mut heat, &[vec![5, 12]], &layers).swaps, [swap]);
    }

    #[test]
    fn what_was_used_long_ago_leaves() {
        let mut heat = Heat::default();
        let layers = vec![tiers(1, 2)];
        round(&mut heat, &[vec![1000, 0]], &layers);
        let rounds = (1_u32..100).find(|n| {
            let swaps = round(&mut heat, &[vec![1000, 8 * n]], &layers).swaps;
            !swaps.is_empty()
        });
        assert!(rounds.is_some_and(|n| (5..40).contains(&n)), "{rounds:?}");
    }

    #[test]
    fn a_round_has_a_bound_and_takes_the_best() {
        let mut heat = Heat::default();
        let n = 4 * N_SWAPS_MAX;
        let layers = vec![tiers(n / 2, n)];
        let counts = (0..n).map(|it| u32::try_from(it).unwrap()).collect();
        let swaps = round(&mut heat, &[counts], &layers).swaps;
        assert_eq!(swaps.len(), N_SWAPS_MAX);
        let best = Swap { layer: 0, arrives: ExpertIdx(n - 1), leaves: ExpertIdx(0) };
        assert_eq!(swaps[0], best);
        apply(&swaps, &mut layers.clone());
    }
}
