//! A model together with the device it runs on: what the sessions of one engine share.
//!
//! **Invariant:** one piece of work uses the device at a time, in the order of asking, so that a
//! long prompt of one session delays another's token by one chunk, not by the whole prompt.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, DeviceNames};
use crate::budget::PromptRoom;
use crate::error::{Error, Result};
use crate::experts::Experts;
use crate::experts::stream::StreamStats;
use crate::forward::{Device, Model};
use crate::ops::N_BEST_MAX;
use crate::session::feed::StepScratch;

/// A model and its device.
#[derive(Debug)]
pub struct Runtime {
    model: Model,
    names: DeviceNames,
    turns: Mutex<Turns>,
    turned: Condvar,
    device: Mutex<Device>,
    /// Lists of steps that are over, for the next ones.
    scratches: Mutex<Vec<StepScratch>>,
    /// None where slots lend nothing to prompts.
    prompt_room: Option<PromptRoom>,
}

/// Who may use the device: tickets are given out in order.
#[derive(Debug, Default)]
struct Turns {
    next: u64,
    serving: u64,
}

/// The device, for one piece of work; the next in line has it afterwards.
pub(crate) struct DeviceGuard<'a> {
    device: MutexGuard<'a, Device>,
    runtime: &'a Runtime,
}

impl Runtime {
    /// A model on a device whose weights are those of the model.
    #[must_use]
    pub fn new(model: Model, backend: Box<dyn Backend>, experts: Experts) -> Self {
        // The best of a vocabulary smaller than their list, with their numbers, are more values.
        let logits = vec![0.0; model.spec.vocab.max(model.plan.best.head_dim)];
        let (row, best) = (Vec::new(), Vec::with_capacity(N_BEST_MAX));
        let names = backend.names();
        let (turns, turned) = (Mutex::default(), Condvar::new());
        Self {
            model,
            names,
            turns,
            turned,
            device: Mutex::new(Device { backend, experts, logits, row, best, n_borrowers: 0 }),
            scratches: Mutex::default(),
            prompt_room: None,
        }
    }

    /// Lets long prompts borrow from slots.
    #[must_use]
    pub fn with_prompt_room(mut self, prompt_room: Option<PromptRoom>) -> Self {
        self.prompt_room = prompt_room;
        self
    }

    /// What long prompts may borrow; `None` where that is nothing.
    #[must_use]
    pub fn prompt_room(&self) -> Option<&PromptRoom> {
        self.prompt_room.as_ref()
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What streaming has done so far; `None` where all experts are in memory.
    #[must_use]
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.lock_to_clean_up().experts.stats()
    }

    /// The model, to change before anybody shares it.
    pub(crate) fn model_mut(&mut self) -> &mut Model {
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
        self.wait_for_turn();
        match self.device.lock() {
            Ok(device) => Ok(DeviceGuard { device, runtime: self }),
            Err(poisoned) => {
                drop(DeviceGuard { device: poisoned.into_inner(), runtime: self });
                Err(Error::Unsupported(
                    "a panic stopped this engine in the middle of a step: open it again".into(),
                ))
            }
        }
    }

    /// The device for giving a session's room back, which works in any state.
    pub(crate) fn lock_to_clean_up(&self) -> DeviceGuard<'_> {
        self.wait_for_turn();
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        DeviceGuard { device, runtime: self }
    }

    /// Lists for a step.
    pub(super) fn take_scratch(&self) -> StepScratch {
        let mut scratches = self.scratches.lock().unwrap_or_else(PoisonError::into_inner);
        scratches.pop().unwrap_or_default()
    }

    /// Keeps the lists of a step that is over.
    pub(super) fn keep_scratch(&self, scratch: StepScratch) {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }

    fn wait_for_turn(&self) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = turns.next;
        turns.next += 1;
        while turns.serving != ticket {
            turns = self.turned.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for DeviceGuard<'_> {
    fn drop(&mut self) {
        let mut turns = self.runtime.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.serving += 1;
        self.runtime.turned.notify_all();
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
