//! A model together with the device it runs on: what the sessions of one engine share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::Backend;
use crate::forward::Model;

/// A model and its device.
#[derive(Debug)]
pub struct Runtime {
    model: Model,
    device: Mutex<Device>,
}

/// The device and scratch for one step: one step runs at a time.
#[derive(Debug)]
pub(crate) struct Device {
    /// Interprets the plans.
    pub(crate) backend: Box<dyn Backend>,
    /// One row of logits.
    pub(crate) logits: Vec<f32>,
}

impl Runtime {
    /// A model on a device whose weights are those of the model.
    #[must_use]
    pub fn new(model: Model, backend: Box<dyn Backend>) -> Self {
        let logits = vec![0.0; model.spec.vocab];
        Self { model, device: Mutex::new(Device { backend, logits }) }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device's name and arithmetic.
    #[must_use]
    pub fn device_names(&self) -> (&'static str, &'static str) {
        let device = self.lock();
        (device.backend.name(), device.backend.arithmetic())
    }

    /// The device, for one step. A panic in another session's step poisons nothing here: states
    /// are separate, and buffers are written before they are read.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
