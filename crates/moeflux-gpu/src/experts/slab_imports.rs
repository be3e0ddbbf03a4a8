//! Slots in host memory that kernels read in place, slab by slab.
//!
//! **Invariant:** a slab is imported when something in it is first used, and released when its
//! contents are no longer needed and no submission reads it any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use moeflux::provider::experts::stream::SlotMapping;
use moeflux_io::Slab;

use crate::device::Gpu;
use crate::host_import::{ImportedSlab, import_slab};
use crate::memory::weights::bind;

/// All imported slabs.
#[derive(Debug)]
pub(crate) struct SlabImports {
    gpu: Arc<Gpu>,
    /// Slabs by the address of the first byte.
    slabs: Mutex<HashMap<usize, SlabImport>>,
    /// Slots of the cache in device memory.
    n_device_slots: usize,
}

/// A slab that was imported and that the driver has not yet released.
#[derive(Debug)]
struct SlabImport {
    /// `None` once the slab is no longer wanted.
    binding: Option<SlabBinding>,
    is_released: Arc<AtomicBool>,
}

/// A slab for kernels and copies.
#[derive(Clone, Debug)]
pub(super) struct SlabBinding {
    pub(super) buffer: wgpu::Buffer,
    pub(super) bind_group: wgpu::BindGroup,
}

impl SlabImports {
    pub(super) fn new(gpu: &Arc<Gpu>, n_device_slots: usize) -> Self {
        Self { gpu: Arc::clone(gpu), slabs: Mutex::default(), n_device_slots }
    }

    /// Returns a slab, imported on first use; `None` if the driver refuses.
    pub(super) fn import(&self, slab: &Slab) -> Option<SlabBinding> {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let address = slab.address().addr().get();
        if let Some(SlabImport { binding: Some(known), .. }) = slabs.get(&address) {
            return Some(known.clone());
        }
        let ImportedSlab { buffer, is_released } = import_slab(self.gpu.device(), slab)?;
        let bind_group = bind(&self.gpu, &buffer);
        let binding = SlabBinding { buffer, bind_group };
        slabs.insert(address, SlabImport { binding: Some(binding.clone()), is_released });
        Some(binding)
    }
}

impl SlotMapping for SlabImports {
    fn unmap(&self, slab: &Slab) -> bool {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let address = slab.address().addr().get();
        let Some(entry) = slabs.get_mut(&address) else { return true };
        entry.binding = None;
        // Submitted commands hold the slab until they complete, recorded ones even longer.
        let has_waited = self.gpu.wait().is_ok();
        let is_released = has_waited && entry.is_released.load(Ordering::Acquire);
        if is_released {
            slabs.remove(&address);
        }
        is_released
    }

    fn n_device_slots(&self) -> usize {
        self.n_device_slots
    }
}
