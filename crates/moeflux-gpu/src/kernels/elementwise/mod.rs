//! Ops that compute each value from the values at the same place, and those that copy rows.

pub(super) mod embed;
pub(super) mod select_rows;
pub(super) mod swiglu;
pub(super) mod add;
