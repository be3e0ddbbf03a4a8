//! A model and the device it runs on, shared by the sessions of one engine.
//!
//! **Invariant:** one task uses the device at a time, in order of arrival. So a long prompt of one
//! session delays another's token by one step, not by the whole prompt.

pub(super) mod fair_lock;
pub(super) mod loans;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::session_budget::SessionBudget;
use crate::backend::{Backend, DeviceNames};
use crate::budget::{SessionRoom, SlotLender};
use crate::error::{Error, Result};
use crate::experts::Experts;
use crate::experts::stream::StreamStats;
use crate::forward::{DeviceContext, LentSlots, LoadedModel, RowTables, ShardGroup, follow};
use crate::rows::RowStats;
use crate::session::rows::output::StepOutput;
use crate::session::rows::{N_ROWS_BESIDE, StepRows};
use crate::session::runtime::fair_lock::{FairLock, FairLockGuard};

/// A model and its device.
#[derive(Debug)]
pub struct Runtime {
    model: LoadedModel,
    names: DeviceNames,
    device_lock: Arc<FairLock>,
    device: Mutex<DeviceContext>,
    /// The lock of the workspace, for steps that may be paused between two layers.
    workspace_lock: Arc<FairLock>,
    /// Lists of finished steps, reused by later ones, so that a token costs no allocation.
    spare_rows: Mutex<Vec<StepRows>>,
    outputs: Mutex<Vec<StepOutput>>,
    /// `None` if slots lend no memory.
    lender: Option<SlotLender>,
    /// Budget from which copies of recurrent state in host memory are booked.
    copies: Arc<SessionBudget>,
}

/// Exclusive access to the device for one task; dropping it lets the next task in.
pub(crate) struct DeviceGuard<'a> {
    device: MutexGuard<'a, DeviceContext>,
    _guard: FairLockGuard,
}

impl Runtime {
    /// Combines a model with a device that holds the model's weights.
    #[must_use]
    pub fn new(model: LoadedModel, backend: Box<dyn Backend>, experts: Experts) -> Self {
        let names = backend.names();
        let copies = if backend.reads_stall() {
            Arc::default()
        } else {
            Arc::clone(backend.states().budget())
        };
        let (row, lent) = (Vec::new(), LentSlots::default());
        let device = DeviceContext {
            backend,
            experts,
            tables: None,
            row,
            lent,
            n_borrowers: 0,
            paused: None,
            group: None,
        };
        Self {
            model,
            names,
            device_lock: Arc::default(),
            device: Mutex::new(device),
            workspace_lock: Arc::default(),
            spare_rows: Mutex::default(),
            outputs: Mutex::default(),
            lender: None,
            copies,
        }
    }

    /// Provides rows of tables from drives.
    #[must_use]
    pub(crate) fn with_tables(self, tables: Option<RowTables>) -> Self {
        self.lock_to_clean_up().tables = tables;
        self
    }

    /// Returns statistics of rows of tables; `None` if the model has no tables.
    #[must_use]
    pub fn row_stats(&self) -> Option<RowStats> {
        self.lock_to_clean_up().tables.as_ref().map(RowTables::stats)
    }

    /// Makes this engine one of several ranks.
    #[must_use]
    pub(crate) fn with_group(self, group: Option<ShardGroup>) -> Self {
        let Some(group) = group else { return self };
        let mut device = self.lock_to_clean_up();
        device.experts.reserve_for_chunks(group.n_chunk_experts);
        device.group = Some(group);
        drop(device);
        self
    }

    /// Carries out the commands of rank 0 until the job ends.
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
        self.lock_to_clean_up().backend.states().budget().set_limit(session_bytes);
        self
    }

    /// Lets prompts and sessions borrow the memory of slots.
    #[must_use]
    pub fn with_lender(mut self, lender: Option<SlotLender>) -> Self {
        self.lender = lender;
        self
    }

    /// Returns the budget from which copies of recurrent state in host memory are booked.
    pub(super) fn copies(&self) -> &Arc<SessionBudget> {
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
        let budget = device.backend.states().budget();
        let most_bytes = self.lender.as_ref().and_then(SlotLender::session_bytes_max);
        SessionRoom {
            booked_bytes: budget.booked_bytes(),
            limit_bytes: most_bytes.or_else(|| budget.limit_bytes()),
            n_slots_lent: device.lent.n_slots_for_sessions,
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

    /// Waits for the device's lock and returns the device.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] if a panic interrupted the device's work earlier: its buffers are then in
    /// an unknown state.
    pub(crate) fn lock(&self) -> Result<DeviceGuard<'_>> {
        let guard = self.device_lock.lock();
        match self.device.lock() {
            Ok(device) => Ok(DeviceGuard { device, _guard: guard }),
            Err(_) => {
                Err(Error::Stopped("a panic interrupted a step: open the engine again".into()))
            }
        }
    }

    /// Waits for the device's lock and returns the device, even after a panic, to free a session's
    /// memory.
    pub(crate) fn lock_to_clean_up(&self) -> DeviceGuard<'_> {
        let guard = self.device_lock.lock();
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        DeviceGuard { device, _guard: guard }
    }

    /// Locks the workspace, for a step that may be paused between two layers.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if this thread already has such a step and would wait for itself.
    pub(super) fn lock_workspace(&self) -> Result<FairLockGuard> {
        self.workspace_lock.lock_unless_held().ok_or_else(|| {
            Error::Input(format!(
                "this thread has a step in progress: finish or drop it before starting a step \
                 other than at most {N_ROWS_BESIDE} answer rows"
            ))
        })
    }

    /// Returns lists for a step.
    pub(super) fn take_rows(&self) -> StepRows {
        self.spare_rows.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps the lists of a finished step for reuse.
    pub(super) fn keep_rows(&self, step_rows: StepRows) {
        self.spare_rows.lock().unwrap_or_else(PoisonError::into_inner).push(step_rows);
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
    type Target = DeviceContext;

    fn deref(&self) -> &DeviceContext {
        &self.device
    }
}

impl DerefMut for DeviceGuard<'_> {
    fn deref_mut(&mut self) -> &mut DeviceContext {
        &mut self.device
    }
}
