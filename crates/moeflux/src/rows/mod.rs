//! Rows of tables that stay on a drive: a token needs a few of them, which its token and those
//! before it name.
//!
//! ```text
//! ngrams       which rows a token needs
//! ```

pub(crate) mod ngrams;
