//! A sequence of tokens with its state on the device, and checkpoints to return to.
//!
//! **Invariant:** `tokens` matches the device's state exactly. A step that fails or is cancelled
//! leaves the session as it was before. Positions past the end are never read, so truncating a
//! cache is exact.

mod rows;
mod runtime;
mod checkpoints;
mod step;
mod many_steps;
mod sums;
mod parts;
mod snapshot;

pub use checkpoints::N_CHECKPOINTS_DEFAULT;
pub use parts::{CopyBooking, LoadFailure, PartsLoad};
pub use rows::N_ROWS_BESIDE;
pub use rows::feed::{Feed, Wanted};
pub use rows::output::{OutputOf, StepOutput};
pub use runtime::Runtime;
pub use runtime::loans::LongerSteps;
pub(crate) use snapshot::identity;
pub use snapshot::{Snapshot, SnapshotHeader};
pub use step::{StepUnderWay, step};

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::forward::DeviceContext;
use crate::ids::{StateId, TokenId};
use crate::session::checkpoints::Checkpoints;
use crate::session::rows::feed::check_context;
use crate::session::runtime::loans::{retry_after_lending, shrink};

/// One sequence of tokens on an engine. Several can exist at once, each on its own thread.
#[derive(Debug)]
pub struct Session {
    runtime: Arc<Runtime>,
    state: StateId,
    context: usize,
    tokens: Vec<TokenId>,
    checkpoints: Checkpoints,
    /// Whether the device still holds the state from before [`Session::clear`].
    is_reset_due: bool,
}

impl Session {
    /// Creates an empty session for up to `context` tokens. Memory for positions is allocated as it
    /// grows.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if `context` is zero or larger than the model's; [`Error::NoRoom`] if
    /// memory is short.
    pub fn new(runtime: Arc<Runtime>, context: usize) -> Result<Self> {
        let context_max = runtime.model().spec.context_max;
        if context == 0 || context > context_max {
            return Err(Error::Input(format!(
                "a context of {context} tokens: this model takes 1 to {context_max}"
            )));
        }
        let spec = &runtime.model().plan.state;
        let state = retry_after_lending(&runtime, &mut *runtime.lock()?, &mut |device| {
            device.backend.states_mut().create_state(spec, context)
        })?;
        let checkpoints = Checkpoints::new(N_CHECKPOINTS_DEFAULT);
        let tokens = Vec::with_capacity(context);
        Ok(Self { runtime, state, context, tokens, checkpoints, is_reset_due: false })
    }

    /// Creates a session with the same tokens and context. Both share the memory of their common
    /// history; checkpoints stay with this one.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short; [`Error::Unsupported`] on devices that cannot share.
    pub fn fork(&mut self) -> Result<Self> {
        let runtime = Arc::clone(&self.runtime);
        let mut device = runtime.lock()?;
        self.apply_reset(&mut device);
        let state = retry_after_lending(&runtime, &mut device, &mut |device| {
            device.backend.states_mut().fork_state(self.state)
        })?;
        drop(device);
        let mut tokens = Vec::with_capacity(self.context);
        tokens.extend_from_slice(&self.tokens);
        let checkpoints = Checkpoints::new(N_CHECKPOINTS_DEFAULT);
        let context = self.context;
        Ok(Self { runtime, state, context, tokens, checkpoints, is_reset_due: false })
    }

    /// Creates a fork that is cut to the first `len` tokens: see [`Session::cut_point`].
    ///
    /// # Errors
    ///
    /// As [`Session::fork`]; [`Error::Input`] or [`Error::NoCheckpoint`] if the session cannot be
    /// cut there.
    pub fn fork_at(&mut self, len: usize) -> Result<Self> {
        let n_tokens = self.tokens.len();
        if len > n_tokens {
            return Err(Error::Input(format!("cannot fork {n_tokens} tokens at {len}")));
        }
        let mut fork = self.fork()?;
        if len == 0 {
            fork.clear();
        } else if len < n_tokens && self.is_recurrent() {
            self.put_checkpoint(len, fork.state)?;
        }
        fork.cut(len);
        Ok(fork)
    }

    /// Returns the largest length up to `len` that the session, or a fork of it, can be cut to. In
    /// a model with recurrent layers, that is the last checkpoint there, unless `len` is the whole
    /// session.
    #[must_use]
    pub fn cut_point(&self, len: usize) -> usize {
        let len = len.min(self.tokens.len());
        if len == self.tokens.len() || !self.is_recurrent() {
            return len;
        }
        self.checkpoints().into_iter().rfind(|position| *position <= len).unwrap_or(0)
    }

    /// Allocates memory for `n_tokens` more tokens, so that feeding them cannot fail for lack of
    /// it. Otherwise feeding allocates memory step by step.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if they do not fit the context; [`Error::NoRoom`] if memory is short.
    pub fn reserve(&mut self, n_tokens: usize) -> Result<()> {
        let begin = self.tokens.len();
        check_context(self, n_tokens)?;
        self.reserve_for(&(begin..begin + n_tokens))
    }

    /// Returns the tokens of the session.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the maximum number of tokens.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Removes all tokens and checkpoints.
    pub fn clear(&mut self) {
        self.is_reset_due = true;
        self.tokens.clear();
        self.checkpoints.clear();
    }

    /// Resets the device's state if that is due, before the state is used.
    fn apply_reset(&mut self, device: &mut DeviceContext) {
        if std::mem::take(&mut self.is_reset_due) {
            device.backend.states_mut().reset_state(self.state);
        }
    }

    /// Cuts the session to its first `len` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::CannotTruncateRecurrentState`] if a recurrent layer has folded in later tokens and
    /// there is no checkpoint at `len`; [`Error::Input`] if the session is shorter; errors of the
    /// device.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let n_tokens = self.tokens.len();
        if len > n_tokens {
            return Err(Error::Input(format!("cannot truncate {n_tokens} tokens to {len}")));
        }
        if len == n_tokens {
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
        Err(Error::CannotTruncateRecurrentState { len: n_tokens, wanted: len })
    }

    fn is_recurrent(&self) -> bool {
        self.runtime.model().plan.state.is_recurrent()
    }

    /// Shortens the token list. The device's state must already match.
    fn cut(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.checkpoints.drop_after(len);
        self.shrink();
    }

    /// Returns the memory of dropped checkpoints to slots.
    fn shrink(&self) {
        if self.runtime.lender().is_some() {
            shrink(&self.runtime, &mut self.runtime.lock_to_clean_up());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.checkpoints.clear();
        let mut device = self.runtime.lock_to_clean_up();
        device.backend.states_mut().drop_state(self.state);
        shrink(&self.runtime, &mut device);
    }
}
