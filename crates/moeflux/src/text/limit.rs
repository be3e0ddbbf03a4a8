//! What a text may cost on its way to tokens, and whether they are still wanted.
//!
//! **Invariant:** a limit changes no token; past it there is an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Says that work is not wanted any more, from any thread. Clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// The work may end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody said so.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The same for work that breaks off.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// How far a text is rendered and encoded.
#[derive(Clone, Debug)]
pub struct TextLimit {
    /// Most bytes that a chat template writes, and of the values that it makes meanwhile.
    pub n_bytes_max: usize,
    /// Most tokens.
    pub n_tokens_max: usize,
    /// Asked now and then.
    pub cancel: Cancel,
}

impl Default for TextLimit {
    /// To its end.
    fn default() -> Self {
        Self { n_bytes_max: usize::MAX, n_tokens_max: usize::MAX, cancel: Cancel::default() }
    }
}

impl PartialEq for TextLimit {
    /// By its numbers.
    fn eq(&self, other: &Self) -> bool {
        self.n_bytes_max == other.n_bytes_max && self.n_tokens_max == other.n_tokens_max
    }
}
