//! Statistics of rows of tables.

use std::time::Duration;

/// What reading rows of tables has done since the model was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowStats {
    /// Bytes of all tables.
    pub table_bytes: u64,
    /// Rows that fit in memory, over all tables.
    pub n_cached: usize,
    /// Different rows that batches needed.
    pub asked: u64,
    /// Of these, rows that were in memory.
    pub hits: u64,
    /// Reads begun, each of one block or several.
    pub reads: u64,
    /// Bytes read, including the blocks around rows.
    pub read_bytes: u64,
    /// Reads whose checksum was wrong and that were repeated.
    pub rereads: u64,
    /// Failed reads that were repeated.
    pub retries: u64,
    /// Time for which computing waited for rows.
    pub read_wait: Duration,
}

impl RowStats {
    /// Returns the differences from `before`, taken earlier from the same engine.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            table_bytes: self.table_bytes,
            n_cached: self.n_cached,
            asked: self.asked - before.asked,
            hits: self.hits - before.hits,
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            rereads: self.rereads - before.rereads,
            retries: self.retries - before.retries,
            read_wait: self.read_wait.saturating_sub(before.read_wait),
        }
    }
}
