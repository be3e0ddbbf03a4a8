//! Maps a number in [0, 1) to one of the candidates by their weights, best first.
//!
//! **Invariant:** a candidate of weight 0 is never drawn.

use crate::ids::TokenId;
use crate::sample::candidates::Candidates;

/// Returns the candidate at the fraction `unit` of the total weight; `None` if there are none.
pub(super) fn pick(candidates: &mut Candidates<'_>, unit: f64) -> Option<TokenId> {
    let target = unit * candidates.total_weight();
    let mut reached = 0.0;
    let mut last = None;
    for rank in 0.. {
        let Some(candidate) = candidates.ranked(rank) else { break };
        let weight = candidates.weight(candidate);
        if weight <= 0.0 {
            break;
        }
        last = Some(candidate.token);
        reached += weight;
        if target < reached {
            break;
        }
    }
    // This sum is in another order and may round to slightly less than the target; then the last
    // candidate is chosen.
    last
}
