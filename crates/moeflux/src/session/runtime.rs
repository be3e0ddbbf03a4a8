//! A model together with the device it runs on: what the sessions of one engine share.
//!
//! **Invariant:** one piece of work uses the device at a time, in the order of asking, so that a
//! long prompt of one session delays another's token by one chunk, not by the whole prompt.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::room::Room;
use crate::backend::{Backend, DeviceNames};
use crate::budget::{GrowthRoom, PromptRoom, SessionRoom};
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
    /// Steps that may be held between two layers take turns at the workspace.
    workspace: Arc<Turnstile>,
    /// Lists of steps that are over, for the next ones: a token costs no allocation.
    chunks: Mutex<Vec<Chunk>>,
    outputs: Mutex<Vec<StepOutput>>,
    /// None where slots lend nothing to prompts.
    prompt_room: Option<PromptRoom>,
    /// None where slots lend nothing to sessions.
    growth_room: Option<GrowthRoom>,
    /// What copies of recurrent state in the host's memory are booked from.
    copies: Arc<Room>,
}

/// The device, for one piece of work; the next in line has it afterwards.
pub(crate) struct DeviceGuard<'a> {
    device: MutexGuard<'a, Device>,
    _turn: Turn,
}

impl Runtime {
    /// A model on a device whose weights are those of the model.
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
            prompt_room: None,
            growth_room: None,
            copies,
        }
    }

    /// Makes this one of several ranks.
    #[must_use]
    pub(crate) fn with_group(self, group: Option<Group>) -> Self {
        let Some(group) = group else { return self };
        let mut device = self.lock_to_clean_up();
        device.experts.hold_waves(group.n_wave);
        device.group = Some(group);
        drop(device);
        self
    }

    /// Does what rank 0 tells until the job is over.
    ///
    /// # Errors
    ///
    /// As [`crate::forward::follow`].
    pub(crate) fn follow(&self) -> Result<()> {
        follow(&self.model, &mut *self.lock()?)
    }

    /// Lets long prompts borrow from slots.
    #[must_use]
    pub fn with_prompt_room(mut self, prompt_room: Option<PromptRoom>) -> Self {
        self.prompt_room = prompt_room;
        self
    }

    /// Lets sessions have this much, which slots can add to.
    #[must_use]
    pub fn with_session_room(
        mut self,
        session_bytes: Option<u64>,
        growth_room: Option<GrowthRoom>,
    ) -> Self {
        self.lock_to_clean_up().backend.states().room().set_limit(session_bytes);
        self.growth_room = growth_room;
        self
    }

    /// What slots can add to the room of sessions; `None` where that is nothing.
    pub(super) fn growth_room(&self) -> Option<&GrowthRoom> {
        self.growth_room.as_ref()
    }

    /// What copies of recurrent state in the host's memory are booked from.
    pub(super) fn copies(&self) -> &Arc<Room> {
        &self.copies
    }

    /// What long prompts may borrow; `None` where that is nothing.
    #[must_use]
    pub fn prompt_room(&self) -> Option<&PromptRoom> {
        self.prompt_room.as_ref()
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// What streaming has done so far; `None` where all experts are in memory.
    #[must_use]
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.lock_to_clean_up().experts.stats()
    }

    /// The memory that sessions share.
    #[must_use]
    pub fn session_room(&self) -> SessionRoom {
        let device = self.lock_to_clean_up();
        let room = device.backend.states().room();
        let growth = self.growth_room.as_ref();
        SessionRoom {
            booked_bytes: room.booked_bytes(),
            limit_bytes: growth.map(GrowthRoom::most_bytes).or_else(|| room.limit_bytes()),
            n_slots_lent: device.loans.n_slots_of_sessions,
        }
    }

    /// The model, to change before anybody shares it.
    pub(crate) fn model_mut(&mut self) -> &mut LoadedModel {
        &mut self.model
    }

    /// What the device calls itself.
    #[must_use]
    pub fn device_names(&self) -> DeviceNames {
        self.names
    }

    /// The device, when it is this caller's turn.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if a panic once left the device in the middle of its work: its
    /// buffers are then in no known state.
    pub(crate) fn lock(&self) -> Result<DeviceGuard<'_>> {
        let turn = self.turns.enter();
        match self.device.lock() {
            Ok(device) => Ok(DeviceGuard { device, _turn: turn }),
            Err(_) => Err(Error::Stopped(
                "a panic stopped this engine in the middle of a step: open it again".into(),
            )),
        }
    }

    /// The device for giving a session's room back, which works in any state.
    pub(crate) fn lock_to_clean_up(&self) -> DeviceGuard<'_> {
        let turn = self.turns.enter();
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        DeviceGuard { device, _turn: turn }
    }

    /// The workspace, for a step that may be held between two layers.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if this thread holds such a step already: it would wait for itself.
    pub(super) fn workspace(&self) -> Result<Turn> {
        self.workspace.enter_once().ok_or_else(|| {
            Error::Input(format!(
                "this thread has a step under way: finish or drop it before a step that is not \
                 at most {N_ROWS_BESIDE} rows of answers"
            ))
        })
    }

    /// Lists for a step.
    pub(super) fn take_chunk(&self) -> Chunk {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps the lists of a step that is over.
    pub(super) fn keep_chunk(&self, chunk: Chunk) {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
    }

    /// Room for what a step gives back.
    pub(super) fn take_output(&self) -> StepOutput {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps that for the next step.
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
