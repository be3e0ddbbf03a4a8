//! Shards a model's plan over several machines, each with some rows of every expert.
//!
//! **Invariant:** pure; no sum is divided, so all machines together compute the same bits as one.

use std::fmt;
use std::ops::Range;

use crate::error::Result;
use crate::families::{ModelPlan, ShardedExperts};
use crate::ops::{ExpertDown, ExpertFfn, ExpertUp, Heads, Op, Plan};
use crate::weights::{ExpertBank, OwnRows, Shares};

impl ModelPlan {
    /// Adds to each sparse layer the plans for this rank's rows of its experts. `banks` are those
    /// of whole experts.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Unsupported`] if the rows cannot be sharded in these shares.
    ///
    /// # Panics
    ///
    /// If a bank does not belong to a sparse layer of this plan.
    pub fn shard(&mut self, banks: &[ExpertBank], shares: &Shares, rank: usize) -> Result<()> {
        for bank in banks {
            let layer = &mut self.layers[bank.layer.0];
            let moe = layer.moe.as_mut().expect("a bank belongs to a layer with experts");
            let Some(Op::ExpertFfn(whole)) = moe.experts.ops().first() else {
                unreachable!("a sparse layer has experts")
            };
            let ranks = (0..shares.n_ranks()).map(|rank| bank.rows_of(shares, rank));
            let ranks: Vec<OwnRows> = ranks.collect::<Result<_>>()?;
            moe.sharded = Some(sharded(whole, &ranks, rank));
        }
        Ok(())
    }
}

fn sharded(whole: &ExpertFfn, ranks: &[OwnRows], rank: usize) -> ShardedExperts {
    let &ExpertFfn { x, sum, limit, biases, .. } = whole;
    let OwnRows { inner, hidden } = ranks[rank].clone();
    let n_inner = ranks.last().map_or(0, |last| last.inner.end);
    let own = columns(&sum, &hidden);
    let up = ExpertUp { x, n_inner, rows: inner, limit, biases };
    let down = ExpertDown { sum: own, n_hidden: sum.head_dim, rows: hidden, biases };
    ShardedExperts {
        up: Plan::new(vec![Op::ExpertUp(up)]),
        down: Plan::new(vec![Op::ExpertDown(down)]),
        x,
        n_inner,
        inner: ranks.iter().map(|it| it.inner.clone()).collect(),
        sums: ranks.iter().map(|it| columns(&sum, &it.hidden)).collect(),
    }
}

impl fmt::Display for ShardedExperts {
    /// Writes the share of each rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, (inner, sum)) in self.inner.iter().zip(&self.sums).enumerate() {
            let before = if rank == 0 { "" } else { "; " };
            let sum = sum.cols(0);
            write!(f, "{before}rank {rank}: inner {inner:?} of {}, sum {sum:?}", self.n_inner)?;
        }
        Ok(())
    }
}

fn columns(heads: &Heads, cols: &Range<usize>) -> Heads {
    heads.narrow(cols.start, cols.len())
}
