//! Turns one number in [0, 1) into one of the candidates, by their weights, best first.
//!
//! **Invariant:** a candidate of weight 0 is never drawn.

use crate::ids::TokenId;
use crate::sample::candidates::Candidates;

/// The candidate at the share `unit` of the whole weight; none if there are no candidates.
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
    // The sum in another order may end a rounding short of the target: then the last one it is.
    last
}
