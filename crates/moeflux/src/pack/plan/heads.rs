//! The two matrices into which mlx-lm splits the `kv_b_proj` of multi-head latent attention.
//!
//! **Invariant:** shapes only; nothing here knows a file.

/// The dimensions of heads in multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pack) struct MlaHeads {
    pub(in crate::pack) n_heads: usize,
    pub(in crate::pack) nope_dim: usize,
    pub(in crate::pack) v_dim: usize,
    pub(in crate::pack) kv_rank: usize,
}

/// One of the two matrices into which mlx-lm splits `kv_b_proj`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pack) struct KvProjectionPart {
    pub(in crate::pack) heads: MlaHeads,
    pub(in crate::pack) kind: KvProjectionKind,
}

/// Selects one of the two matrices into which `kv_b_proj` is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pack) enum KvProjectionKind {
    /// `embed_q`: the rows of each head's keys, transposed.
    Keys,
    /// `unembed_out`: the rows of each head's values.
    Values,
}

impl KvProjectionPart {
    /// Returns heads, rows and columns of the result.
    pub(in crate::pack) fn shape(self) -> (usize, usize, usize) {
        let MlaHeads { n_heads, nope_dim, v_dim, kv_rank } = self.heads;
        match self.kind {
            KvProjectionKind::Keys => (n_heads, kv_rank, nope_dim),
            KvProjectionKind::Values => (n_heads, v_dim, kv_rank),
        }
    }

    /// Returns the rows of the result over all heads.
    pub(in crate::pack) fn n_rows(self) -> usize {
        let (n_heads, n_rows, _) = self.shape();
        n_heads * n_rows
    }
}
