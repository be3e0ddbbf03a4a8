//! A list of operations, printable.

use std::fmt;

use crate::ops::{BufferSpec, Heads, Op, RowSet, Workspace};

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

    /// The plan as text, with the names of the workspace's buffers: one line per op, weights first,
    /// then what it reads, what it writes last.
    #[must_use]
    pub fn listing<'a>(&'a self, workspace: &'a Workspace) -> impl fmt::Display + 'a {
        Listing { plan: self, buffers: workspace.buffers() }
    }
}

struct Listing<'a> {
    plan: &'a Plan,
    buffers: &'a [BufferSpec],
}

impl Listing<'_> {
    /// A buffer's name and, unless the view is the whole row, where the view lies in it.
    fn view(&self, heads: &Heads) -> String {
        let buffer = &self.buffers[heads.buffer.0];
        let mut text = buffer.name.to_owned();
        if heads.n_heads == 1 && heads.first_col == 0 && heads.head_dim == buffer.n_cols {
            return text;
        }
        text += &format!("[{}..", heads.first_col);
        if heads.n_heads > 1 {
            text += &format!(" by {}", heads.stride);
        }
        text += &format!(", {} x {}]", heads.n_heads, heads.head_dim);
        text
    }
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in &self.plan.ops {
            write!(f, "{:<14}", op.name())?;
            for matrix in op.matrices() {
                write!(f, " m{}", matrix.0)?;
            }
            for vector in op.vectors() {
                write!(f, " v{}", vector.0)?;
            }
            for heads in op.heads() {
                write!(f, " {}", self.view(&heads))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
