//! Positions that a session can return to, in memory.
//!
//! The session keeps the keys, values and latents before a checkpoint anyway, so a checkpoint
//! shares them. It copies only recurrent state, whose size does not grow with the text.
//! **Invariant:** a checkpoint's position is at most the session's length. At most `n_max` are
//! kept; making another drops the least recently made or used.

use std::sync::Arc;

use crate::backend::session_budget::{Booking, SessionBudget};
use crate::backend::{Backend, StatePart};
use crate::error::{Error, Remedy, Result};
use crate::forward::DeviceContext;
use crate::ids::{LayerIdx, StateId};
use crate::ops::{LayerState, StateSpec};
use crate::session::Session;
use crate::session::runtime::loans::retry_after_lending;

/// Default number of checkpoints per session: a system prompt, a document, two turns.
pub const N_CHECKPOINTS_DEFAULT: usize = 4;

/// A copy of the recurrent layers' state at one position.
#[derive(Debug)]
pub(super) struct RecurrentCopy {
    layers: Vec<(LayerIdx, Vec<u8>)>,
    _booking: Booking,
}

/// Books memory for a [`RecurrentCopy`].
pub(super) fn book_copy(budget: &Arc<SessionBudget>, spec: &StateSpec) -> Result<Booking> {
    budget.book(spec.fixed_bytes(), &|| "a copy of a session's recurrent state".to_owned())
}

/// Fails if there is no memory for `n_copies` copies.
pub(super) fn check_copies(
    budget: &Arc<SessionBudget>,
    spec: &StateSpec,
    n_copies: usize,
) -> Result<()> {
    let n_bytes = spec.fixed_bytes().saturating_mul(n_copies as u64);
    budget.check(n_bytes, &|| format!("{n_copies} copies of a session's recurrent state"))
}

impl RecurrentCopy {
    /// Copies the recurrent layers of a session, either its state or what its last step stored at a
    /// mark.
    pub(super) fn of(
        backend: &mut dyn Backend,
        (state, mark_idx): (StateId, Option<usize>),
        spec: &StateSpec,
        booking: Booking,
    ) -> Result<Self> {
        let mut layers = Vec::new();
        for (layer_idx, layer_state) in spec.layers.iter().enumerate() {
            if !matches!(layer_state, LayerState::Recurrent { .. }) {
                continue;
            }
            let layer = LayerIdx(layer_idx);
            let part = match mark_idx {
                Some(mark_idx) => StatePart::Marked { layer, mark_idx },
                None => StatePart::Recurrent { layer },
            };
            let mut bytes = zeroed_bytes(backend.states().state_part_bytes(state, part))?;
            backend.states_mut().read_state(state, part, &mut bytes)?;
            layers.push((layer, bytes));
        }
        Ok(Self { layers, _booking: booking })
    }

    /// Overwrites all recurrent layers of a session, or none.
    pub(super) fn put_back(&self, backend: &mut dyn Backend, state: StateId) -> Result<()> {
        for (layer, bytes) in &self.layers {
            backend.states_mut().write_state(
                state,
                StatePart::Recurrent { layer: *layer },
                bytes,
            )?;
        }
        backend.states_mut().commit_state(state);
        Ok(())
    }
}

/// Allocates zeroed bytes. Fails if memory is short: large models' states take hundreds of
/// megabytes.
fn zeroed_bytes(n_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(n_bytes).map_err(|_| {
        let what = "a copy of a session's recurrent state";
        Error::no_room(what, n_bytes as u64, Remedy::FewerCheckpoints)
    })?;
    bytes.resize(n_bytes, 0);
    Ok(bytes)
}

/// A session's checkpoints, least recently made or used first.
#[derive(Debug)]
pub(super) struct Checkpoints {
    n_max: usize,
    kept: Vec<(usize, RecurrentCopy)>,
}

impl Checkpoints {
    pub(super) fn new(n_max: usize) -> Self {
        Self { n_max, kept: Vec::new() }
    }

    pub(super) fn has(&self, position: usize) -> bool {
        self.kept.iter().any(|(at, _)| *at == position)
    }

    /// Yields the states of recurrent layers at a position with a checkpoint; nothing elsewhere.
    pub(super) fn layers_at(&self, position: usize) -> impl Iterator<Item = &[u8]> {
        let kept = self.kept.iter().filter(move |(at, _)| *at == position);
        kept.flat_map(|(_, copy)| copy.layers.iter().map(|(_, bytes)| bytes.as_slice()))
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }

    /// Drops checkpoints past the session's new end.
    pub(super) fn drop_after(&mut self, len: usize) {
        self.kept.retain(|(at, _)| *at <= len);
    }

    fn positions(&self) -> Vec<usize> {
        let mut positions: Vec<_> = self.kept.iter().map(|(at, _)| *at).collect();
        positions.sort_unstable();
        positions
    }

    fn forget(&mut self, position: usize) {
        self.kept.retain(|(at, _)| *at != position);
    }

    pub(super) fn keep(&mut self, position: usize, copy: RecurrentCopy) {
        self.forget(position);
        self.kept.push((position, copy));
        let n_over = self.kept.len().saturating_sub(self.n_max);
        self.kept.drain(..n_over);
    }

    /// Returns the checkpoint at `position` and marks it as the most recently used.
    fn touch(&mut self, position: usize) -> Option<&RecurrentCopy> {
        let idx = self.kept.iter().position(|(at, _)| *at == position)?;
        let entry = self.kept.remove(idx);
        self.kept.push(entry);
        self.kept.last().map(|(_, copy)| copy)
    }
}

impl Session {
    /// Makes a checkpoint at `position`. In a model with recurrent layers, it must be the session's
    /// end: earlier states are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if the position is invalid or no checkpoints are kept; [`Error::NoRoom`] if
    /// memory is short; errors of the device.
    pub fn checkpoint(&mut self, position: usize) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        self.checkpoint_on(&mut *runtime.lock()?, position)
    }

    pub(super) fn checkpoint_on(
        &mut self,
        device: &mut DeviceContext,
        position: usize,
    ) -> Result<()> {
        let len = self.tokens.len();
        if position > len || (position < len && self.is_recurrent()) {
            return Err(Error::Input(format!(
                "cannot make a checkpoint at {position}: the session is at {len}"
            )));
        }
        if self.checkpoints.n_max == 0 {
            return Err(Error::Input("this session keeps no checkpoints: its limit is 0".into()));
        }
        self.apply_reset(device);
        let runtime = Arc::clone(&self.runtime);
        let spec = &runtime.model().plan.state;
        let booking =
            retry_after_lending(&runtime, device, &mut |_| book_copy(runtime.copies(), spec))?;
        let from = (self.state, None);
        let copy = RecurrentCopy::of(device.backend.as_mut(), from, spec, booking)?;
        self.checkpoints.keep(position, copy);
        Ok(())
    }

    /// Returns to a checkpoint and drops later ones.
    ///
    /// # Errors
    ///
    /// [`Error::NoCheckpoint`] if there is none at `position`; errors of the device.
    pub fn restore(&mut self, position: usize) -> Result<()> {
        self.put_checkpoint(position, self.state)?;
        self.cut(position);
        Ok(())
    }

    /// Overwrites a session's recurrent layers with the states of one of this session's
    /// checkpoints.
    pub(super) fn put_checkpoint(&mut self, position: usize, state: StateId) -> Result<()> {
        let available = self.checkpoints.positions();
        let Some(copy) = self.checkpoints.touch(position) else {
            return Err(Error::NoCheckpoint { wanted: position, available });
        };
        copy.put_back(self.runtime.lock()?.backend.as_mut(), state)
    }

    /// Drops the checkpoint at `position`, if there is one.
    pub fn forget(&mut self, position: usize) {
        self.checkpoints.forget(position);
        self.shrink();
    }

    /// Returns the positions of all checkpoints, ascending.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<usize> {
        self.checkpoints.positions()
    }

    /// Sets the maximum number of checkpoints. Drops the least recently made or used beyond it.
    pub fn set_checkpoints_max(&mut self, n_max: usize) {
        self.checkpoints.n_max = n_max;
        let n_over = self.checkpoints.kept.len().saturating_sub(n_max);
        self.checkpoints.kept.drain(..n_over);
        if n_over > 0 {
            self.shrink();
        }
    }
}
