//! A model and the device it runs on, shared by the sessions of one engine.
//!
//! **Invariant:** one task uses the device at a time, in order of arrival. So a long prompt of one
//! session delays another's token by one chunk, not by the whole prompt.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::room::Room;
use crate::backend::{Backend, DeviceNames};
use crate::budget::{SessionRoom, SlotLender};
use crate::error::{Error, Result};
use crate::experts::Experts;
use crate::experts::stream::StreamStats;
use crate::forward::{Device, Group, LoadedModel, Loans, follow};
use crate::session::chunk::{Chunk, N_ROWS_BESIDE};
use crate::session::output::StepOutput;
use crate::session::turns::{Turn, Turnstile};

/// A model and its device.
#[derive(Debug)]
pub struct Runtime {
    model: LoadedModel,
    names: DeviceNames,
    turns: Arc<Turnstile>,
    device: Mutex<Device>,
    /// Turns at the workspace, for steps that may be paused between two layers.
    workspace: Arc<Turnstile>,
    /// Lists of finished steps, reused by later ones, so that a token costs no allocation.
    chunks: Mutex<Vec<Chunk>>,
    outputs: Mutex<Vec<StepOutput>>,
    /// `None` if slots lend no memory.
    lender: Option<SlotLender>,
    /// Budget from which copies of recurrent state in host memory are booked.
    copies: Arc<Room>,
}

/// Exclusive access to the device for one task; dropping it passes the turn on.
pub(crate) struct DeviceGuard<'a> {
    device: MutexGuard<'a, Device>,
    _turn: Turn,
}

impl Runtime {
    /// Combines a model with a device that holds the model's weights.
    #[must_use]
    pub fn new(model: LoadedModel, backend: Box<dyn Backend>, experts: Experts) -> Self {
        let names = backend.names();
        let copies =
            if backend.is_remote() { Arc::default() } else { Arc::clone(backend.states().room()) };
        let (row, loans) = (Vec::new(), Loans::default());
        let device =
            Device { backend, experts, row, loans, n_borrowers: 0, held: None, group: None };
        Self {
            model,
            names,
            turns: Arc::default(),
            device: Mutex::new(device),
            workspace: Arc::default(),
            chunks: Mutex::default(),
            outputs: Mutex::default(),
            lender: None,
            copies,
        }
    }

    /// Makes this engine one of several ranks.
    #[must_use]
    pub(crate) fn with_group(self, group: Option<Group>) -> Self {
        let Some(group) = group else { return self };
        let mut device = self.lock_to_clean_up();
        device.experts.hold_waves(group.n_wave);
        device.group = Some(group);
        drop(device);
        self
    }

    /// Carries out the orders of rank 0 until the job ends.
    ///
    /// # Errors
    ///
    /// As [`crate::forward::follow`].
    pub(crate) fn follow(&self) -> Result<()> {
        follow(&self.model, &mut *self.lock()?)
    }

    /// Limits the memory of sessions, while they borrow nothing.
    #[must_use]
    pub fn with_session_bytes(self, session_bytes: Option<u64>) -> Self {
        self.lock_to_clean_up().backend.states().room().set_limit(session_bytes);
        self
    }

    /// Lets prompts and sessions borrow the memory of slots.
    #[must_use]
    pub fn with_lender(mut self, lender: Option<SlotLender>) -> Self {
        self.lender = lender;
        self
    }

    /// Returns the budget from which copies of recurrent state in host memory are booked.
    pub(super) fn copies(&self) -> &Arc<Room> {
        &self.copies
    }

    /// Returns the slots that can lend memory; `None` if none can.
    #[must_use]
    pub fn lender(&self) -> Option<&SlotLender> {
        self.lender.as_ref()
    }

    /// Returns the model.
    #[must_use]
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// Returns streaming statistics; `None` if all experts are in memory.
    #[must_use]
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.lock_to_clean_up().experts.stats()
    }

    /// Returns the state of the memory that sessions share.
    #[must_use]
    pub fn session_room(&self) -> SessionRoom {
        let device = self.lock_to_clean_up();
        let room = device.backend.states().room();
        let most_bytes = self.lender.as_ref().and_then(SlotLender::session_bytes_max);
        SessionRoom {
            booked_bytes: room.booked_bytes(),
            limit_bytes: most_bytes.or_else(|| room.limit_bytes()),
            n_slots_lent: device.loans.n_slots_of_sessions,
        }
    }

    /// Returns the model, to be changed before it is shared.
    pub(crate) fn model_mut(&mut self) -> &mut LoadedModel {
        &mut self.model
    }

    /// Returns the device's names.
    #[must_use]
    pub fn device_names(&self) -> DeviceNames {
        self.names
    }

    /// Waits for a turn and returns the device.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] if a panic interrupted the device's work earlier: its buffers are then in
    /// an unknown state.
    pub(crate) fn lock(&self) -> Result<DeviceGuard<'_>> {
        let turn = self.turns.enter();
        match self.device.lock() {
            Ok(device) => Ok(DeviceGuard { device, _turn: turn }),
            Err(_) => {
                Err(Error::Stopped("a panic interrupted a step: open the engine again".into()))
            }
        }
    }

    /// Waits for a turn and returns the device, even after a panic, to free a session's memory.
    pub(crate) fn lock_to_clean_up(&self) -> DeviceGuard<'_> {
        let turn = self.turns.enter();
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        DeviceGuard { device, _turn: turn }
    }

    /// Waits for the workspace, for a step that may be paused between two layers.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if this thread already has such a step and would wait for itself.
    pub(super) fn workspace(&self) -> Result<Turn> {
        self.workspace.enter_once().ok_or_else(|| {
            Error::Input(format!(
                "this thread has a step in progress: finish or drop it before starting a step \
                 other than at most {N_ROWS_BESIDE} answer rows"
            ))
        })
    }

    /// Returns lists for a step.
    pub(super) fn take_chunk(&self) -> Chunk {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps the lists of a finished step for reuse.
    pub(super) fn keep_chunk(&self, chunk: Chunk) {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
    }

    /// Returns an empty output for a step.
    pub(super) fn take_output(&self) -> StepOutput {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps the output for reuse by the next step.
    pub(super) fn keep_output(&self, output: StepOutput) {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).push(output);
    }
}

impl Deref for DeviceGuard<'_> {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl DerefMut for DeviceGuard<'_> {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.device
    }
}
