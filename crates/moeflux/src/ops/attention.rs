//! Attention over a session's positions, and the choice of the positions that it covers.

use crate::ids::{LayerIdx, VectorId};
use crate::ops::Heads;

/// The positions that each row attends to: some whole blocks of positions, and the positions after
/// the last whole block. Blocks are counted from position 0. A row that sees no more positions than
/// the list has columns attends to all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenPositions {
    /// One head of fewer than 2^24 positions as floats, ascending: columns for the chosen blocks,
    /// and for one position less than a block. Unused in rows that attend to all positions. NaN in
    /// the first column stands for a failed choice, and makes the row's attention NaN.
    pub list: Heads,
    /// Positions of a block.
    pub block: usize,
}

impl ChosenPositions {
    /// Returns the columns of a list for these many blocks.
    #[must_use]
    pub const fn n_cols(n_blocks: usize, block: usize) -> usize {
        n_blocks * block + block - 1
    }

    /// Returns the number of blocks that are chosen.
    #[must_use]
    pub const fn n_blocks(&self) -> usize {
        self.list.head_dim / self.block
    }

    /// Returns the number of positions that a row attends to.
    #[must_use]
    pub const fn n_of(&self, position: usize) -> usize {
        if self.is_all(position) {
            return position + 1;
        }
        self.n_blocks() * self.block + (position + 1) % self.block
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

/// Averages the keys of whole blocks of positions. Stores `k` among the layer's index keys, in rows
/// that do not complete a block. In rows that do, `out` is the sum of the stored keys of the block,
/// in ascending order, and of the row's own `k`, divided by `block`; in the others, `out` is `k`.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolKeys {
    /// Layer of the index keys.
    pub layer: LayerIdx,
    /// Keys of these rows; one head.
    pub k: Heads,
    /// Positions of a block.
    pub block: usize,
    /// Another buffer than `k`.
    pub out: Heads,
}

/// Appends `k` to the index keys of the layer in rows that complete a block, then chooses the
/// blocks with the largest scores for each row, of the whole ones up to its own position:
/// `score = sum over heads h of weights[h] * max(0, q[h] . k)`, in ascending order of heads, where
/// `k` is the key that the last position of the block appended. Of equal scores, 0 and -0 included,
/// the one of the lower block comes first. Rows that attend to all positions compute no score and
/// write nothing. If some score is not finite, the list becomes NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectPositions {
    /// Layer of the index keys.
    pub layer: LayerIdx,
    /// Queries.
    pub q: Heads,
    /// Index keys of these rows; one head.
    pub k: Heads,
    /// One head with a column for each head of `q`; all weights are 1 if `None`.
    pub weights: Option<Heads>,
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
    /// The positions that each row attends to, in ascending order, instead of a window; all up to
    /// its own if `None`.
    pub chosen: Option<ChosenPositions>,
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
