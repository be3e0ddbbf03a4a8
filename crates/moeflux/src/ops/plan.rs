//! A list of operations, printable, with a name of its own.
//!
//! **Invariant:** a plan never changes once it has its name, so that what is made of it once is
//! found by the name alone.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::ops::{BufferSpec, Heads, Op, RowSet, Workspace};

/// Names a plan and its copies, and nothing else for as long as anything keeps the name.
///
/// The name is a piece of memory of its own: what keeps a name keeps that piece, so no later plan
/// gets the same one, and no counter of the whole process is needed.
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

/// Whether the same is done over the same rows, whatever the names.
impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows && self.ops == other.ops
    }
}

impl Plan {
    /// A plan over all rows.
    #[must_use]
    pub fn new(ops: Vec<Op>) -> Self {
        Self::over(RowSet::All, ops)
    }

    /// A plan over rows of one kind.
    #[must_use]
    pub fn over(rows: RowSet, ops: Vec<Op>) -> Self {
        Self { id: PlanId(Arc::new(())), rows, ops }
    }

    /// Its name, which its copies share.
    #[must_use]
    pub const fn id(&self) -> &PlanId {
        &self.id
    }

    /// Which rows.
    #[must_use]
    pub const fn rows(&self) -> RowSet {
        self.rows
    }

    /// What is done, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
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
