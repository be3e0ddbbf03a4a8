//! One timeline of tokens: what was fed, what the device remembers of it, and ways back.
//!
//! **Invariant:** `tokens` is exactly what the device's state holds. A step that fails or is
//! cancelled leaves the session as it was before. Positions past the end are never read, so that
//! cutting a cache is exact.

mod turns;
mod feed;
mod output;
mod chunk;
mod runtime;
mod growth;
mod checkpoints;
mod longer;
mod step;
mod whole;
mod snapshot;

pub use checkpoints::N_CHECKPOINTS_DEFAULT;
pub use chunk::N_ROWS_BESIDE;
pub use feed::{Feed, Wanted};
pub use longer::LongerSteps;
pub use output::{OutputOf, StepOutput};
pub use runtime::Runtime;
pub use snapshot::{Snapshot, SnapshotHeader};
pub use step::{StepUnderWay, step};

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::forward::Device;
use crate::ids::{StateId, TokenId};
use crate::session::checkpoints::Checkpoints;
use crate::session::feed::check_context;
use crate::session::growth::{shrink, with_room};

/// One timeline over an engine. Many may live at once, each on a thread of its own.
#[derive(Debug)]
pub struct Session {
    runtime: Arc<Runtime>,
    state: StateId,
    context: usize,
    tokens: Vec<TokenId>,
    checkpoints: Checkpoints,
    /// The device still holds what was forgotten.
    is_reset_due: bool,
}

impl Session {
    /// An empty session for up to `context` tokens, which takes memory for positions as it grows.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if `context` is zero or more than the model was made for,
    /// [`Error::NoRoom`] if memory for it cannot be had.
    pub fn new(runtime: Arc<Runtime>, context: usize) -> Result<Self> {
        let context_max = runtime.model().spec.context_max;
        if context == 0 || context > context_max {
            return Err(Error::Input(format!(
                "a context of {context} tokens: this model takes 1 to {context_max}{}",
                runtime.model().spec.context_limit.reason()
            )));
        }
        let spec = &runtime.model().plan.state;
        let state = with_room(&runtime, &mut *runtime.lock()?, &mut |device| {
            device.backend.states_mut().create_state(spec, context)
        })?;
        let checkpoints = Checkpoints::new(N_CHECKPOINTS_DEFAULT);
        let tokens = Vec::with_capacity(context);
        Ok(Self { runtime, state, context, tokens, checkpoints, is_reset_due: false })
    }

    /// A session with the same tokens and the same context. Both share the memory of their common
    /// past; checkpoints stay with this one.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::Unsupported`] on devices that cannot share.
    pub fn fork(&mut self) -> Result<Self> {
        let runtime = Arc::clone(&self.runtime);
        let mut device = runtime.lock()?;
        self.apply_reset(&mut device);
        let state = with_room(&runtime, &mut device, &mut |device| {
            device.backend.states_mut().fork_state(self.state)
        })?;
        drop(device);
        let mut tokens = Vec::with_capacity(self.context);
        tokens.extend_from_slice(&self.tokens);
        let checkpoints = Checkpoints::new(N_CHECKPOINTS_DEFAULT);
        let context = self.context;
        Ok(Self { runtime, state, context, tokens, checkpoints, is_reset_due: false })
    }

    /// The same, cut to its first `len` tokens: see [`Session::cut_point`].
    ///
    /// # Errors
    ///
    /// As [`Session::fork`]; [`Error::Input`] and [`Error::NoCheckpoint`] for a session that cannot
    /// be cut there.
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

    /// The most of its first `len` tokens that the session, or a fork of it, can be cut to: all of
    /// them, or in a model with recurrent layers those before its last checkpoint there.
    #[must_use]
    pub fn cut_point(&self, len: usize) -> usize {
        let len = len.min(self.tokens.len());
        if len == self.tokens.len() || !self.is_recurrent() {
            return len;
        }
        self.checkpoints().into_iter().rfind(|position| *position <= len).unwrap_or(0)
    }

    /// Makes room for this many tokens more, so that feeding them cannot fail for want of it.
    /// Feeding makes what room it needs, step by step.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if they are more than fit the context, [`Error::NoRoom`].
    pub fn reserve(&mut self, n_tokens: usize) -> Result<()> {
        let begin = self.tokens.len();
        check_context(self, n_tokens)?;
        let runtime = Arc::clone(&self.runtime);
        with_room(&runtime, &mut *runtime.lock()?, &mut |device| {
            device.backend.states_mut().reserve_positions(self.state, &(begin..begin + n_tokens))
        })
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

    /// Forgets everything, checkpoints too.
    pub fn clear(&mut self) {
        self.is_reset_due = true;
        self.tokens.clear();
        self.checkpoints.clear();
    }

    /// Lets the device forget as well, before it is asked for the state.
    fn apply_reset(&mut self, device: &mut Device) {
        if std::mem::take(&mut self.is_reset_due) {
            device.backend.states_mut().reset_state(self.state);
        }
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

    /// Shortens the timeline; the device's state must already fit.
    fn cut(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.checkpoints.drop_after(len);
        self.give_back();
    }

    /// Gives back to experts what they lent for checkpoints that are gone.
    fn give_back(&self) {
        if self.runtime.growth_room().is_some() {
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
