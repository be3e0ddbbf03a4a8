//! Pages of reports: a label, and beside it a text or a size.
//!
//! **Invariant:** sizes are printed exactly and rounded both ways, so that a reader may compare
//! them with any other tool.

use moeflux::ByteCount;
use moeflux::provider::error::grouped;

use crate::fold::folded;
use crate::size::binary;

/// Lines whose labels have so many columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels(pub(crate) usize);

impl Labels {
    /// A label and a text, folded beside it.
    pub(crate) fn row(self, label: &str, text: &str) -> Vec<String> {
        folded(&format!("  {label:<width$}", width = self.0), text)
    }

    /// The line above sizes.
    pub(crate) fn header(self, label: &str, what: &str) -> String {
        format!("{label:<width$}{what:>20}", width = self.0 + 2)
    }

    /// A label, exact bytes, and rounded both ways.
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
