//! What a session keeps, part by part, as plain bytes: of some positions, or the recurrent state
//! after one of them.
//!
//! Bytes fit any engine with the same [`crate::Engine::state_identity`]; a program that keeps them
//! compares it and verifies what it reads. **Invariant:** loading changes nothing before
//! [`PartsLoad::finish`]: positions past a session's end are not used, and recurrent layers keep
//! their state.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;

use crate::backend::StatePart;
use crate::backend::kv::PAGE_POSITIONS;
use crate::backend::session_budget::Booking;
use crate::error::{Error, Result};
use crate::ids::{LayerIdx, TokenId};
use crate::ops::{LayerState, StateSpec};
use crate::session::Session;
use crate::session::runtime::loans::retry_after_lending;
use crate::session::sums::{read_failed, write_failed};

/// A session, and tokens that it is to continue with, whose parts are loaded instead of computed.
#[derive(Debug)]
#[must_use = "the session has the tokens after `finish`"]
pub struct PartsLoad {
    session: Session,
    tokens: Vec<TokenId>,
    n_loaded: usize,
    n_recurrent_loaded: usize,
}

/// Memory of the budget of sessions that holds bytes of one.
#[derive(Debug)]
pub struct CopyBooking {
    _booking: Booking,
}

/// A session that is as it was before parts were loaded.
#[derive(Debug)]
pub struct LoadFailure {
    /// The session.
    pub session: Session,
    /// Why it has no more tokens.
    pub error: Error,
}

impl Session {
    /// Writes what layers keep of some positions, without recurrent state.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for positions that the session does not have; [`Error::SavedState`] if
    /// writing fails; errors of the device.
    pub fn write_positions(&mut self, positions: Range<usize>, out: &mut dyn Write) -> Result<()> {
        self.check_positions(&positions)?;
        let runtime = Arc::clone(&self.runtime);
        self.apply_reset(&mut *runtime.lock()?);
        pages(&positions).try_for_each(|page| self.write_page(&page, out))
    }

    /// Writes the state of all recurrent layers after `position` tokens.
    pub(super) fn write_recurrent(&mut self, position: usize, out: &mut dyn Write) -> Result<()> {
        self.check_recurrent(position)?;
        let runtime = Arc::clone(&self.runtime);
        self.apply_reset(&mut *runtime.lock()?);
        if position < self.tokens.len() {
            let mut layers = self.checkpoints.layers_at(position);
            return layers.try_for_each(|bytes| out.write_all(bytes).map_err(write_failed));
        }
        recurrent_parts(&runtime.model().plan.state)
            .try_for_each(|part| out.write_all(&self.read_part(part)?).map_err(write_failed))
    }

    /// Begins to continue with `tokens`, whose parts are loaded next, in order. Books memory for
    /// all of them.
    ///
    /// # Errors
    ///
    /// The session, with [`Error::Input`] if they do not fit its context, or [`Error::NoRoom`] if
    /// memory is short.
    pub fn load_parts(
        mut self,
        tokens: Vec<TokenId>,
    ) -> std::result::Result<PartsLoad, Box<LoadFailure>> {
        match self.prepare_load(tokens.len()) {
            Ok(()) => Ok(PartsLoad { session: self, tokens, n_loaded: 0, n_recurrent_loaded: 0 }),
            Err(error) => Err(Box::new(LoadFailure { session: self, error })),
        }
    }

    /// Returns the bytes of the state of each recurrent layer; nothing in models without.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn recurrent_layers(&self) -> Result<Vec<usize>> {
        let device = self.runtime.lock()?;
        let states = device.backend.states();
        let parts = recurrent_parts(&self.runtime.model().plan.state);
        Ok(parts.map(|part| states.state_part_bytes(self.state, part)).collect())
    }

    /// Writes the state of one of the [`Session::recurrent_layers`] after `position` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if there is no such layer; [`Error::NoCheckpoint`] if neither the session
    /// nor a checkpoint ends there; [`Error::SavedState`] if writing fails; errors of the device.
    pub fn write_recurrent_layer(
        &mut self,
        position: usize,
        layer_idx: usize,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.check_recurrent(position)?;
        let runtime = Arc::clone(&self.runtime);
        self.apply_reset(&mut *runtime.lock()?);
        let none = || Error::Input(format!("there is no recurrent layer {layer_idx}"));
        if position < self.tokens.len() {
            let bytes = self.checkpoints.layers_at(position).nth(layer_idx).ok_or_else(none)?;
            return out.write_all(bytes).map_err(write_failed);
        }
        let part = recurrent_parts(&runtime.model().plan.state).nth(layer_idx).ok_or_else(none)?;
        out.write_all(&self.read_part(part)?).map_err(write_failed)
    }

    /// Books memory of the budget of sessions for bytes of this one, until the booking is dropped.
    /// Slots lend what is missing.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if less is left.
    pub fn book_copy(&self, n_bytes: u64) -> Result<CopyBooking> {
        let what = || "a copy of a part of a session".to_owned();
        let (runtime, copies) = (&self.runtime, self.runtime.copies());
        let booking = retry_after_lending(runtime, &mut *runtime.lock()?, &mut |_| {
            copies.book(n_bytes, &what)
        })?;
        Ok(CopyBooking { _booking: booking })
    }

    fn prepare_load(&mut self, n_tokens: usize) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        self.apply_reset(&mut *runtime.lock()?);
        self.reserve(n_tokens)
    }

    pub(super) fn check_positions(&self, positions: &Range<usize>) -> Result<()> {
        let (Range { start, end }, n_tokens) = (positions, self.tokens.len());
        if start <= end && *end <= n_tokens {
            return Ok(());
        }
        Err(Error::Input(format!(
            "cannot save positions {start} to {end} of a session of {n_tokens} tokens"
        )))
    }

    /// Fails if recurrent layers have no state after `position` tokens.
    pub(super) fn check_recurrent(&self, position: usize) -> Result<()> {
        let is_known = position == self.tokens.len() || self.checkpoints.has(position);
        if is_known || !self.is_recurrent() {
            return Ok(());
        }
        Err(Error::NoCheckpoint { wanted: position, available: self.checkpoints() })
    }

    /// Writes what layers keep of the positions of a page.
    pub(super) fn write_page(&self, page: &Range<usize>, out: &mut dyn Write) -> Result<()> {
        parts_of_page(&self.runtime.model().plan.state, page)
            .try_for_each(|part| out.write_all(&self.read_part(part)?).map_err(write_failed))
    }

    /// Reads what layers keep of the positions of a page.
    pub(super) fn load_page(&self, page: &Range<usize>, input: &mut dyn Read) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        parts_of_page(&runtime.model().plan.state, page)
            .try_for_each(|part| self.load_part(part, input))
    }

    /// Reads the state of all recurrent layers. It takes effect when it is committed.
    pub(super) fn load_recurrent(&self, input: &mut dyn Read) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        recurrent_parts(&runtime.model().plan.state)
            .try_for_each(|part| self.load_part(part, input))
    }

    fn load_part(&self, part: StatePart, input: &mut dyn Read) -> Result<()> {
        let n_bytes = self.runtime.lock()?.backend.states().state_part_bytes(self.state, part);
        let mut bytes = vec![0; n_bytes];
        input.read_exact(&mut bytes).map_err(read_failed)?;
        // The device is free for others while bytes are read.
        self.runtime.lock()?.backend.states_mut().write_state(self.state, part, &bytes)
    }

    fn read_part(&self, part: StatePart) -> Result<Vec<u8>> {
        // The device is free for others while the bytes are written.
        let mut device = self.runtime.lock()?;
        let mut bytes = vec![0; device.backend.states().state_part_bytes(self.state, part)];
        device.backend.states_mut().read_state(self.state, part, &mut bytes)?;
        Ok(bytes)
    }

    /// Books memory for more positions.
    pub(super) fn reserve_for(&self, positions: &Range<usize>) -> Result<()> {
        retry_after_lending(&self.runtime, &mut *self.runtime.lock()?, &mut |device| {
            device.backend.states_mut().reserve_positions(self.state, positions)
        })
    }

    /// Continues with tokens whose parts were loaded.
    pub(super) fn commit_loaded(&mut self, tokens: &[TokenId]) -> Result<()> {
        self.runtime.lock()?.backend.states_mut().commit_state(self.state);
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}

impl PartsLoad {
    /// Reads what layers keep of the next `n` positions.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if there are fewer tokens; [`Error::SavedState`] if the bytes cannot be
    /// read; errors of the device.
    pub fn positions(&mut self, n: usize, input: &mut dyn Read) -> Result<()> {
        let n_missing = self.tokens.len() - self.n_loaded;
        if n > n_missing {
            return Err(Error::Input(format!("cannot load {n} positions: {n_missing} are left")));
        }
        let first = self.session.tokens.len() + self.n_loaded;
        pages(&(first..first + n)).try_for_each(|page| self.session.load_page(&page, input))?;
        self.n_loaded += n;
        Ok(())
    }

    /// Reads the state of the next of the [`Session::recurrent_layers`] after the last token.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if there is none; [`Error::SavedState`] if the bytes cannot be read; errors
    /// of the device.
    pub fn recurrent_layer(&mut self, input: &mut dyn Read) -> Result<()> {
        let layer_idx = self.n_recurrent_loaded;
        let part = recurrent_parts(&self.session.runtime.model().plan.state).nth(layer_idx);
        let none = || Error::Input(format!("there is no recurrent layer {layer_idx}"));
        self.session.load_part(part.ok_or_else(none)?, input)?;
        self.n_recurrent_loaded += 1;
        Ok(())
    }

    /// Returns the number of positions that were loaded.
    #[must_use]
    pub fn n_loaded(&self) -> usize {
        self.n_loaded
    }

    /// Returns the session with its new tokens.
    ///
    /// # Errors
    ///
    /// The session as it was, with [`Error::Input`] if parts are missing, or an error of the
    /// device.
    pub fn finish(self) -> std::result::Result<Session, Box<LoadFailure>> {
        let Self { mut session, tokens, n_loaded, n_recurrent_loaded } = self;
        let n_tokens = tokens.len();
        let n_recurrent = recurrent_parts(&session.runtime.model().plan.state).count();
        let is_stateless = n_recurrent_loaded < n_recurrent && n_tokens > 0;
        let problem = if n_loaded < n_tokens {
            format!("{n_loaded} of {n_tokens} positions were loaded")
        } else if is_stateless {
            format!("{n_recurrent_loaded} of {n_recurrent} recurrent layers were loaded")
        } else {
            return match session.commit_loaded(&tokens) {
                Ok(()) => Ok(session),
                Err(error) => Err(Box::new(LoadFailure { session, error })),
            };
        };
        Err(Box::new(LoadFailure { session, error: Error::Input(problem) }))
    }

    /// Returns the session as it was.
    #[must_use]
    pub fn give_up(self) -> Session {
        self.session
    }
}

/// Cuts positions into pages.
pub(super) fn pages(positions: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = positions.end;
    positions
        .clone()
        .step_by(PAGE_POSITIONS)
        .map(move |first| first..end.min(first + PAGE_POSITIONS))
}

fn parts_of_page<'a>(
    spec: &'a StateSpec,
    page: &Range<usize>,
) -> impl Iterator<Item = StatePart> + use<'a> {
    let (first, n) = (page.start, page.len());
    let is_kept = |(_, layer): &(usize, &LayerState)| !layer.is_recurrent();
    let kept = spec.layers.iter().enumerate().filter(is_kept);
    kept.map(move |(layer_idx, _)| StatePart::Positions { layer: LayerIdx(layer_idx), first, n })
}

fn recurrent_parts(spec: &StateSpec) -> impl Iterator<Item = StatePart> {
    let layers = spec.layers.iter().enumerate().filter(|(_, layer)| layer.is_recurrent());
    layers.map(|(layer_idx, _)| StatePart::Recurrent { layer: LayerIdx(layer_idx) })
}
