//! Rows of tables that stay on a drive: a token needs a few of them, which it and the tokens before
//! it name. Each file needs those above it only:
//!
//! ```text
//! ngrams    which rows a token needs
//! cache     the rows in memory: those used last
//! request   the rows of a batch, as they arrive
//! runs      rows that are read together
//! stats     what was read
//! reader    rows from memory or from drives
//! ```
//!
//! **Invariant:** a row has the same values wherever it comes from.

mod ngrams;
mod cache;
mod request;
mod runs;
mod stats;
mod reader;

pub use ngrams::NgramHash;
pub(crate) use reader::{RowReader, SumChecks};
pub use stats::RowStats;
