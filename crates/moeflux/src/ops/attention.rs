//! Attention over a session's positions, and the choice of the positions that it covers.

use crate::ids::{LayerIdx, VectorId};
use crate::ops::Heads;

/// The positions that each row attends to: as many as the list has columns, or all up to the row's
/// own as long as these are not more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenPositions {
    /// One head of fewer than 2^24 positions as floats, ascending. Unused in rows that see no more
    /// positions than the list has columns. NaN in the first column stands for a failed choice, and
    /// makes the row's attention NaN.
    pub list: Heads,
}

impl ChosenPositions {
    /// Returns the number of positions that a row attends to.
    #[must_use]
    pub fn n_of(&self, position: usize) -> usize {
        self.list.head_dim.min(position + 1)
    }

    /// Returns whether a row attends to all positions up to its own.
    #[must_use]
    pub const fn is_all(&self, position: usize) -> bool {
        position < self.list.head_dim
    }

    /// Returns a listed position.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a list has whole numbers below 2^24"
    )]
    pub const fn position_of(listed: f32) -> usize {
        listed as usize
    }
}

/// Appends `k` to the index keys of the layer, then chooses the positions with the largest scores
/// for each row, of all up to its own: `score = sum over heads h of weights[h] * max(0, q[h] . k)`,
/// in ascending order of heads. Of equal scores, 0 and -0 included, the one of the lower position
/// comes first. Rows that choose all positions compute no score and write nothing. If some score is
/// not finite, the list becomes NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectPositions {
    /// Layer of the index keys.
    pub layer: LayerIdx,
    /// Queries.
    pub q: Heads,
    /// Index keys of these rows; one head.
    pub k: Heads,
    /// One head with a column for each head of `q`.
    pub weights: Heads,
    /// The choice.
    pub chosen: ChosenPositions,
}

/// Appends `k` and `v` to the layer's cache, then attends causally:
/// `out = softmax(scale * q . k) v`, then `* sigmoid(gate)` if there is a gate.
/// Query head `h` uses key head `h / (q heads / k heads)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Layer of the cache.
    pub layer: LayerIdx,
    /// Queries.
    pub q: Heads,
    /// Keys of these rows.
    pub k: Heads,
    /// Values of these rows, as many heads as `k`.
    pub v: Heads,
    /// Output gate, before its sigmoid; same heads as `out`.
    pub gate: Option<Heads>,
    /// As many heads as `q`, with the dimension of `v`.
    pub out: Heads,
    /// Factor of the scores.
    pub scale: f32,
    /// Number of most recent positions that are seen; all if `None`.
    pub window: Option<usize>,
    /// `[q heads]`: an extra score per head that takes weight but contributes no value.
    pub sinks: Option<VectorId>,
}

/// Multi-head latent attention in absorbed form: appends `latent` and `k_rope` (one head each) to
/// the layer's cache, then
/// `out[h] = softmax(scale * (q_latent[h] . latent + q_rope[h] . k_rope)) latent`.
/// With a choice of positions, only these count, in ascending order.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaAttention {
    /// Layer of the cache.
    pub layer: LayerIdx,
    /// Queries in latent space.
    pub q_latent: Heads,
    /// Rotated part of the queries.
    pub q_rope: Heads,
    /// Latent of these rows, normed; one head.
    pub latent: Heads,
    /// Rotated keys of these rows; one head.
    pub k_rope: Heads,
    /// In latent space, as many heads as `q_latent`.
    pub out: Heads,
    /// Factor of the scores.
    pub scale: f32,
    /// The positions that each row attends to; all up to its own if `None`.
    pub chosen: Option<ChosenPositions>,
}
