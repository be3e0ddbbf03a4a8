//! Slots in host memory that kernels read in place, slab by slab.
//!
//! **Invariant:** a slab is imported when something in it is first used, and released when its
//! contents are no longer needed and no submission reads it any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use moeflux::provider::experts::stream::SlotSight;
use moeflux_io::Slab;

use crate::device::Gpu;
use crate::memory::weights::bind;
use crate::seen::{SeenSlab, see};

/// All imported slabs.
#[derive(Debug)]
pub(crate) struct Sight {
    gpu: Arc<Gpu>,
    /// Slabs by the address of the first byte.
    slabs: Mutex<HashMap<usize, Shown>>,
    /// Places in device memory.
    n_near: usize,
}

#[derive(Debug)]
struct Shown {
    /// `None` once the slab is no longer wanted.
    seen: Option<Seen>,
    is_gone: Arc<AtomicBool>,
}

/// A slab for kernels and copies.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) buffer: wgpu::Buffer,
    pub(super) bind_group: wgpu::BindGroup,
}

impl Sight {
    pub(super) fn new(gpu: &Arc<Gpu>, n_near: usize) -> Self {
        Self { gpu: Arc::clone(gpu), slabs: Mutex::default(), n_near }
    }

    /// Returns a slab, imported on first use; `None` if the driver refuses.
    pub(super) fn see(&self, slab: &Slab) -> Option<Seen> {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let address = slab.address().addr().get();
        if let Some(Shown { seen: Some(known), .. }) = slabs.get(&address) {
            return Some(known.clone());
        }
        let SeenSlab { buffer, is_gone } = see(self.gpu.device(), slab)?;
        let bind_group = bind(&self.gpu, &buffer);
        let seen = Seen { buffer, bind_group };
        slabs.insert(address, Shown { seen: Some(seen.clone()), is_gone });
        Some(seen)
    }
}

impl SlotSight for Sight {
    fn forget(&self, slab: &Slab) -> bool {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let address = slab.address().addr().get();
        let Some(shown) = slabs.get_mut(&address) else { return true };
        shown.seen = None;
        // Submitted commands hold the slab until they complete, recorded ones even longer.
        let has_waited = self.gpu.wait().is_ok();
        let is_gone = has_waited && shown.is_gone.load(Ordering::Acquire);
        if is_gone {
            slabs.remove(&address);
        }
        is_gone
    }

    fn n_near(&self) -> usize {
        self.n_near
    }
}
