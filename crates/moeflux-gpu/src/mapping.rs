//! A buffer on its way into the host's sight.
//!
//! **Invariant:** asking never waits; the answer comes once, after the submissions that use the
//! buffer are done and somebody polled the device.

use std::sync::{Arc, Mutex, PoisonError};

use moeflux::error::Result;

use crate::device::Gpu;

/// What the driver will say, or has said.
#[derive(Debug)]
pub(crate) struct Mapping {
    answer: Arc<Mutex<Option<std::result::Result<(), wgpu::BufferAsyncError>>>>,
}

impl Mapping {
    /// Asks for a whole buffer; all that uses it must be submitted.
    pub(crate) fn begin(buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Self {
        let answer = Arc::new(Mutex::new(None));
        let told = Arc::clone(&answer);
        buffer.map_async(mode, .., move |result| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        });
        Self { answer }
    }

    /// Whether it is there.
    ///
    /// # Errors
    ///
    /// [`moeflux::error::Error::Device`].
    pub(crate) fn is_done(&self, gpu: &Gpu) -> Result<bool> {
        match self.answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(e)) => Err(gpu.error(&format!("its memory cannot be seen: {e}"))),
        }
    }
}
