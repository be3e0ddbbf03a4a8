//! One timeline of tokens: what was fed, what the device remembers of it, and ways back.
//!
//! **Invariant:** `tokens` is exactly what the device's state holds. A step that fails or is
//! cancelled leaves the session as it was before. Positions past the end are never read, so that
//! cutting a cache is exact.

mod checkpoints;
mod turns;
mod feed;
mod output;
mod chunk;
mod runtime;
mod longer;
mod step;
mod whole;
mod snapshot;

pub use checkpoints::N_CHECKPOINTS_DEFAULT;
pub use chunk::N_ROWS_BESIDE;
pub use feed::{Feed, Wanted};
pub use output::{OutputOf, StepOutput};
pub use runtime::Runtime;
pub use step::{StepUnderWay, step};

use std::sync::Arc;

use crate::error::{Error, Remedy, Result};
use crate::forward::Device;
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
    /// The device still holds what was forgotten.
    is_reset_due: bool,
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
        let state = device.backend.fork_state(self.state)?;
        drop(device);
        let mut tokens = Vec::with_capacity(self.context);
        tokens.extend_from_slice(&self.tokens);
        let checkpoints = Checkpoints::new(N_CHECKPOINTS_DEFAULT);
        let context = self.context;
        Ok(Self { runtime, state, context, tokens, checkpoints, is_reset_due: false })
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
            device.backend.reset_state(self.state);
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
    }
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
            available_bytes: Some(available_bytes),
            needs: Vec::new(),
            remedy: Remedy::ShorterContext,
        }),
        _ => Ok(()),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.runtime.lock_to_clean_up().backend.drop_state(self.state);
    }
}
