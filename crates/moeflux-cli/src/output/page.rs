//! Report pages: labels with a text or a size next to them.
//!
//! **Invariant:** sizes are printed exactly and rounded in both units, so that they can be compared
//! with any other tool.

use moeflux::ByteCount;
use moeflux::provider::error::grouped;

use crate::output::fold::folded;
use crate::output::size::binary;

/// Lines whose labels have this width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels(pub(crate) usize);

impl Labels {
    /// Returns a label and a text, folded next to it.
    pub(crate) fn row(self, label: &str, text: &str) -> Vec<String> {
        folded(&format!("  {label:<width$}", width = self.0), text)
    }

    /// Returns the header line above sizes.
    pub(crate) fn header(self, label: &str, what: &str) -> String {
        format!("{label:<width$}{what:>20}", width = self.0 + 2)
    }

    /// Returns a label, exact bytes, and both roundings.
    pub(crate) fn size(self, label: &str, n_bytes: u64) -> String {
        format!(
            "  {label:<width$}{:>20}{:>12}{:>13}",
            grouped(n_bytes),
            ByteCount(n_bytes).rounded(),
            binary(n_bytes),
            width = self.0
        )
    }
}
