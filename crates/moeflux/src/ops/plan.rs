//! A list of operations, printable.

use std::fmt;

use crate::ops::Op;

/// Which rows a plan's ops run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSet {
    /// Every row of the batch.
    All,
    /// Only rows whose logits are wanted; the plan begins with [`Op::SelectRows`].
    Outputs,
}

/// Operations that run in order over the same rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which rows.
    pub rows: RowSet,
    /// What is done, in order.
    pub ops: Vec<Op>,
}

impl Plan {
    /// A plan over all rows.
    #[must_use]
    pub fn new(ops: Vec<Op>) -> Self {
        Self { rows: RowSet::All, ops }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in &self.ops {
            write!(f, "{:<14}", op.name())?;
            for heads in op.heads() {
                write!(f, " b{}", heads.buffer.0)?;
                if heads.first_col != 0 {
                    write!(f, "+{}", heads.first_col)?;
                }
                write!(f, "[{}x{}]", heads.n_heads, heads.head_dim)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
