//! A buffer on its way into the host's sight, and the copy once it is there.
//!
//! **Invariant:** asking never waits; the answer comes once, after the submissions that use the
//! buffer are done and somebody polled the device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moeflux::provider::error::Result;

use crate::device::Gpu;

type Said = Option<std::result::Result<(), wgpu::BufferAsyncError>>;

/// What the driver will say, or has said.
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
    /// Asks for a whole buffer; all that uses it must be submitted.
    pub(crate) fn begin(buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Self {
        let answer = Arc::new(Answer::default());
        let told = Arc::clone(&answer);
        buffer.map_async(mode, .., move |result| {
            *told.said() = Some(result);
            told.came.notify_all();
        });
        Self { answer }
    }

    /// Whether it is there.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`].
    pub(crate) fn is_done(&self, gpu: &Gpu) -> Result<bool> {
        match self.answer.said().take() {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(e)) => Err(gpu.error(&format!("its memory cannot be mapped: {e}"))),
        }
    }

    /// Sleeps for so long, or until another thread that polls the device hears the answer.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let said = self.answer.said();
        if said.is_none() {
            drop(self.answer.came.wait_timeout(said, at_most));
        }
    }
}

/// Copies the first bytes of a buffer that is mapped, and unmaps it.
pub(crate) fn copy_mapped(gpu: &Gpu, buffer: &wgpu::Buffer, target: &mut [u8]) -> Result<()> {
    let view = buffer.get_mapped_range(..target.len() as u64);
    let view = view.map_err(|e| gpu.error(&format!("reading back failed: {e}")))?;
    target.copy_from_slice(&view);
    drop(view);
    buffer.unmap();
    Ok(())
}
