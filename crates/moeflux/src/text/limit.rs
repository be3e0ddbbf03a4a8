//! Limits on rendering and encoding a text, and cancellation.
//!
//! **Invariant:** a limit changes no token; exceeding it is an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// A flag that cancels work from any thread. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels the work.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the work was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns an error if the work was cancelled.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// The limits on rendering and encoding a text.
#[derive(Clone, Debug)]
pub struct TextLimit {
    /// Maximum bytes of a chat template's output, and of the values that it creates.
    pub n_bytes_max: usize,
    /// Maximum number of tokens.
    pub n_tokens_max: usize,
    /// Cancellation flag, checked at intervals.
    pub cancel: Cancel,
}

impl Default for TextLimit {
    /// Sets no limits.
    fn default() -> Self {
        Self { n_bytes_max: usize::MAX, n_tokens_max: usize::MAX, cancel: Cancel::default() }
    }
}

impl PartialEq for TextLimit {
    /// Compares the limits, not the flag.
    fn eq(&self, other: &Self) -> bool {
        self.n_bytes_max == other.n_bytes_max && self.n_tokens_max == other.n_tokens_max
    }
}
