//! One timeline of tokens: what was fed, what the device remembers of it, and ways back.
//!
//! **Invariant:** `tokens` is exactly what the device's state holds. A step that fails leaves the
//! session as it was before, or marks it torn, and a torn session refuses to go on until it is
//! cleared or restored. Positions past the end are never read, so that cutting a cache is exact.

mod checkpoints;
mod longer;
mod feed;
mod runtime;
mod snapshot;

pub use checkpoints::N_CHECKPOINTS_DEFAULT;
use feed::step_to_choose;
pub use feed::{Feed, OutputOf, Wanted, step};
pub use runtime::Runtime;

use std::sync::Arc;

use crate::error::{ByteCount, Error, Result};
use crate::forward::{Logits, Watch};
use crate::ids::{StateId, TokenId};
use crate::ops::{KvKind, StateSpec};
use crate::session::checkpoints::Checkpoints;

/// One timeline over an engine. Many may live at once, each on a thread of its own.
#[derive(Debug)]
pub struct Session {
    runtime: Arc<Runtime>,
    state: StateId,
    context: usize,
    tokens: Vec<TokenId>,
    checkpoints: Checkpoints,
    is_torn: bool,
}

impl Session {
    /// An empty session with room for `context` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if `context` is zero or more than the model was made for,
    /// [`Error::NoRoom`] if memory for it cannot be had.
    pub fn new(runtime: Arc<Runtime>, context: usize) -> Result<Self> {
        let context_max = runtime.model().spec.context_max;
        if context == 0 || context > context_max {
            return Err(Error::Input(format!(
                "a context of {context} tokens: this model takes 1 to {context_max}"
            )));
        }
        let kind = runtime.device_names().arithmetic.kv_kind();
        check_room(&runtime.model().plan.state, kind, context)?;
        let state = runtime.lock()?.backend.create_state(&runtime.model().plan.state, context)?;
        let checkpoints = Checkpoints::new(N_CHECKPOINTS_DEFAULT);
        let tokens = Vec::with_capacity(context);
        Ok(Self { runtime, state, context, tokens, checkpoints, is_torn: false })
    }

    /// What the session is made of.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens that fit.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Feeds tokens; `sink` gets the wanted logits, row by row.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for unknown tokens and a full context, before anything has changed;
    /// otherwise what the step reports.
    pub fn feed(
        &mut self,
        tokens: &[TokenId],
        wanted: Wanted,
        watch: &mut Watch<'_>,
        sink: &mut dyn FnMut(OutputOf, &[f32]) -> Result<()>,
    ) -> Result<()> {
        step(&mut [Feed { session: self, tokens, wanted }], watch, sink)
    }

    /// Feeds tokens of which the last is followed by a choice; `sink` gets its logits, or at least
    /// the best so many where others would have to be fetched: see
    /// [`crate::sample::Sampler::n_best_needed`].
    ///
    /// # Errors
    ///
    /// As [`Session::feed`]; [`Error::Input`] if there are no tokens.
    pub fn feed_to_choose(
        &mut self,
        tokens: &[TokenId],
        n_best: Option<usize>,
        watch: &mut Watch<'_>,
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<()> {
        let feed = Feed { session: self, tokens, wanted: Wanted::Last };
        step_to_choose(&mut [feed], n_best, watch, &mut |_, logits| {
            sink(logits);
            Ok(())
        })
    }

    /// Feeds tokens and returns the logits of the last.
    ///
    /// # Errors
    ///
    /// As [`Session::feed`]; [`Error::Input`] if there are no tokens.
    pub fn feed_last(&mut self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let mut last = Vec::new();
        let watch = &mut |_| std::ops::ControlFlow::Continue(());
        self.feed(tokens, Wanted::Last, watch, &mut |_, logits| {
            last.extend_from_slice(logits);
            Ok(())
        })?;
        Ok(last)
    }

    /// Forgets everything, checkpoints too.
    pub fn clear(&mut self) {
        self.runtime.lock_to_clean_up().backend.reset_state(self.state);
        self.tokens.clear();
        self.checkpoints.clear();
        self.is_torn = false;
    }

    /// Cuts the session to its first `len` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::CannotTruncateRecurrentState`] where a recurrent layer has folded the rest in and
    /// there is no checkpoint at `len`; [`Error::Input`] if the session is shorter.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let n_tokens = self.tokens.len();
        if len > n_tokens {
            return Err(Error::Input(format!("cannot cut {n_tokens} tokens to {len}")));
        }
        if len == n_tokens && !self.is_torn {
            return Ok(());
        }
        if len == 0 {
            self.clear();
            return Ok(());
        }
        if !self.is_recurrent() {
            self.cut(len);
            return Ok(());
        }
        if self.checkpoints.has(len) {
            return self.restore(len);
        }
        if len == n_tokens {
            return Err(torn());
        }
        Err(Error::CannotTruncateRecurrentState { len: n_tokens, wanted: len })
    }

    fn is_recurrent(&self) -> bool {
        self.runtime.model().plan.state.is_recurrent()
    }

    /// Shortens the timeline; the device's state must already fit.
    fn cut(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.checkpoints.drop_after(len);
        self.is_torn = false;
    }
}

/// A step failed half-way, and the recurrent state with it.
fn torn() -> Error {
    Error::Input(
        "this session's last step failed half-way; clear it or restore a checkpoint".into(),
    )
}

/// Memory that the system hands out on credit is only found missing when it is written: by then it
/// is too late for an error.
fn check_room(spec: &StateSpec, kind: KvKind, context: usize) -> Result<()> {
    let needed_bytes = spec
        .bytes_per_position(kind)
        .saturating_mul(context as u64)
        .saturating_add(spec.fixed_bytes());
    match moeflux_io::available_memory_bytes() {
        Some(available_bytes) if needed_bytes > available_bytes => Err(Error::NoRoom {
            what: format!("a context of {context} tokens"),
            needed_bytes,
            advice: format!(
                "{} are free; a shorter context needs less",
                ByteCount(available_bytes)
            ),
        }),
        _ => Ok(()),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.runtime.lock_to_clean_up().backend.drop_state(self.state);
    }
}
