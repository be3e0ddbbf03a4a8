//! A printable list of operations with a unique identity.
//!
//! **Invariant:** a plan never changes after its id is assigned, so anything derived from it can be
//! cached by id alone.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::ops::{BufferSpec, Heads, Op, RowSet, Workspace};

/// Identifies a plan and its clones, and nothing else while any copy of the id exists.
///
/// The id is an allocation: a copy keeps the allocation alive, so no later plan gets the same id,
/// and no process-wide counter is needed.
#[derive(Clone, Debug)]
pub struct PlanId(Arc<()>);

impl PartialEq for PlanId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PlanId {}

impl Hash for PlanId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// Operations that run in order over the same rows.
#[derive(Clone, Debug)]
pub struct Plan {
    id: PlanId,
    rows: RowSet,
    ops: Vec<Op>,
}

/// Compares rows and operations, and ignores ids.
impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows && self.ops == other.ops
    }
}

impl Plan {
    /// Creates a plan over all rows.
    #[must_use]
    pub fn new(ops: Vec<Op>) -> Self {
        Self::over(RowSet::All, ops)
    }

    /// Creates a plan over rows of one kind.
    #[must_use]
    pub fn over(rows: RowSet, ops: Vec<Op>) -> Self {
        Self { id: PlanId(Arc::new(())), rows, ops }
    }

    /// Returns the id, which clones share.
    #[must_use]
    pub const fn id(&self) -> &PlanId {
        &self.id
    }

    /// Returns the rows that the ops run over.
    #[must_use]
    pub const fn rows(&self) -> RowSet {
        self.rows
    }

    /// Returns the operations, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the plan as text, with the names of the workspace's buffers: one line per op, with
    /// weights first, then inputs, then outputs.
    #[must_use]
    pub fn listing<'a>(&'a self, workspace: &'a Workspace) -> impl fmt::Display + 'a {
        PlanListing { plan: self, buffers: workspace.buffers() }
    }
}

struct PlanListing<'a> {
    plan: &'a Plan,
    buffers: &'a [BufferSpec],
}

impl PlanListing<'_> {
    /// Returns a buffer's name and, unless the view is the whole row, its columns.
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

impl fmt::Display for PlanListing<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_a_name_and_equal_plans_do_not() {
        let (first, second) = (Plan::new(Vec::new()), Plan::new(Vec::new()));
        assert_eq!(first.id(), first.clone().id());
        assert_ne!(first.id(), second.id());
        assert!(first == second && first != Plan::over(RowSet::Outputs, Vec::new()));
    }
}
