//! An asynchronous buffer mapping, and the copy once it is complete.
//!
//! **Invariant:** a request never waits. The result arrives once, after the submissions that use
//! the buffer are done and some thread has polled the device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moeflux::provider::error::Result;

use crate::device::Gpu;

/// The driver's result of a mapping, once there is one.
type MapResult = Option<std::result::Result<(), wgpu::BufferAsyncError>>;

/// A mapping of a buffer, pending or complete.
#[derive(Debug)]
pub(crate) struct Mapping {
    signal: Arc<MapSignal>,
}

/// Signals the result of a mapping to the thread that sleeps until it arrives.
#[derive(Debug, Default)]
struct MapSignal {
    result: Mutex<MapResult>,
    arrived: Condvar,
}

impl MapSignal {
    fn result(&self) -> MutexGuard<'_, MapResult> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mapping {
    /// Requests the mapping of a whole buffer. All commands that use it must be submitted.
    pub(crate) fn begin(buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Self {
        let signal = Arc::new(MapSignal::default());
        let sender = Arc::clone(&signal);
        buffer.map_async(mode, .., move |result| {
            *sender.result() = Some(result);
            sender.arrived.notify_all();
        });
        Self { signal }
    }

    /// Returns whether the mapping is complete. A `true` or an error is returned once.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`] if the buffer cannot be mapped.
    pub(crate) fn is_done(&self, gpu: &Gpu) -> Result<bool> {
        match self.signal.result().take() {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(e)) => Err(gpu.error(&format!("its memory cannot be mapped: {e}"))),
        }
    }

    /// Sleeps for at most `at_most`, or until another thread that polls the device receives the
    /// result.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let result = self.signal.result();
        if result.is_none() {
            drop(self.signal.arrived.wait_timeout(result, at_most));
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
