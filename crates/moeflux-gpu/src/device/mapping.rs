//! An asynchronous buffer mapping, and the copy once it is complete.
//!
//! **Invariant:** a request never waits. The answer arrives once, after the submissions that use
//! the buffer are done and some thread has polled the device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moeflux::provider::error::Result;

use crate::device::Gpu;

type Said = Option<std::result::Result<(), wgpu::BufferAsyncError>>;

/// The driver's answer to a mapping request, pending or present.
#[derive(Debug)]
pub(crate) struct Mapping {
    answer: Arc<Answer>,
}

#[derive(Debug, Default)]
struct Answer {
    said: Mutex<Said>,
    came: Condvar,
}

impl Answer {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mapping {
    /// Requests the mapping of a whole buffer. All commands that use it must be submitted.
    pub(crate) fn begin(buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Self {
        let answer = Arc::new(Answer::default());
        let told = Arc::clone(&answer);
        buffer.map_async(mode, .., move |result| {
            *told.said() = Some(result);
            told.came.notify_all();
        });
        Self { answer }
    }

    /// Returns whether the mapping is complete. A `true` or an error is returned once.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`] if the buffer cannot be mapped.
    pub(crate) fn is_done(&self, gpu: &Gpu) -> Result<bool> {
        match self.answer.said().take() {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(e)) => Err(gpu.error(&format!("its memory cannot be mapped: {e}"))),
        }
    }

    /// Sleeps for at most `at_most`, or until another thread that polls the device receives the
    /// answer.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let said = self.answer.said();
        if said.is_none() {
            drop(self.answer.came.wait_timeout(said, at_most));
        }
    }
}

/// Copies the first bytes of a mapped buffer and unmaps it.
pub(crate) fn copy_mapped(gpu: &Gpu, buffer: &wgpu::Buffer, target: &mut [u8]) -> Result<()> {
    let view = buffer.get_mapped_range(..target.len() as u64);
    let view = view.map_err(|e| gpu.error(&format!("reading back failed: {e}")))?;
    target.copy_from_slice(&view);
    drop(view);
    buffer.unmap();
    Ok(())
}
