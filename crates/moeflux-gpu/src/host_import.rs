//! Import of host memory: a slab of slots becomes a buffer that kernels read without a copy. Also
//! reads the size of an adapter's memory from the driver.
//!
//! **Invariant:** the driver releases a slab once its buffer is dropped and no submission uses it
//! any more; until then the slab stays alive. This module does not know the contents or writers of
//! a slab; lenders of slots ensure that none is written while a kernel reads it. Besides
//! `device/mod.rs`, this is the only file of the crate with `unsafe`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A slab that the driver imported, as a buffer of kernels.
#[derive(Debug)]
pub(crate) struct ImportedSlab {
    pub(crate) buffer: wgpu::Buffer,
    /// Whether the driver has released the slab.
    pub(crate) is_released: Arc<AtomicBool>,
}

#[cfg(target_vendor = "apple")]
pub(crate) use metal::{can_import_slabs, import_slab, memory_bytes, open};
#[cfg(not(target_vendor = "apple"))]
pub(crate) use vulkan::{can_import_slabs, import_slab, memory_bytes, open};

/// The Vulkan implementation.
#[cfg(not(target_vendor = "apple"))]
#[expect(unsafe_code, reason = "the driver gets memory that it did not allocate")]
mod vulkan {
    use std::ffi::CStr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use ash::ext::external_memory_host as extension;
    use ash::vk;
    use moeflux_io::Slab;
    use wgpu::hal::api::Vulkan;
    use wgpu::hal::vulkan::{Buffer, CreateDeviceCallbackArgs};

    use super::ImportedSlab;

    const NAME: &CStr = extension::NAME;

    /// Memory that the host allocated in any way.
    const HOST: vk::ExternalMemoryHandleTypeFlags =
        vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

    /// Opens an adapter with support for slab import; `None` if the adapter does not offer that, or
    /// fails to open.
    pub(crate) fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor<'_>,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        // SAFETY: the driver's adapter is used within this call only.
        let inner = unsafe { adapter.as_hal::<Vulkan>() }?;
        if !inner.physical_device_capabilities().supports_extension(NAME) {
            return None;
        }
        let extend =
            Box::new(|args: CreateDeviceCallbackArgs<'_, '_, '_>| args.extensions.push(NAME));
        let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
        let hints = &descriptor.memory_hints;
        // SAFETY: the adapter has the one extension that is added, and nothing is taken away.
        let opened = unsafe { inner.open_with_callback(features, limits, hints, Some(extend)) };
        // SAFETY: it was opened on this adapter just now, with these features.
        unsafe { adapter.create_device_from_hal(opened.ok()?, descriptor) }.ok()
    }

    /// Returns the memory of an adapter, if its driver reports it.
    pub(crate) fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
        // SAFETY: the driver's adapter is read within this call only.
        let inner = unsafe { adapter.as_hal::<Vulkan>() }?;
        let (instance, device) =
            (inner.shared_instance().raw_instance(), inner.raw_physical_device());
        // SAFETY: both belong to the adapter, which lives until the end of this call.
        let properties = unsafe { instance.get_physical_device_memory_properties(device) };
        let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
        // Only heaps of the device's own memory have flags. The largest of them is that memory, and
        // others are parts of it that the host sees.
        heaps.iter().filter(|heap| !heap.flags.is_empty()).map(|heap| heap.size).max()
    }

    /// Returns whether a device was opened with support for slab import.
    pub(crate) fn can_import_slabs(device: &wgpu::Device) -> bool {
        // SAFETY: the driver's device is used within this call only.
        let inner = unsafe { device.as_hal::<Vulkan>() };
        inner.is_some_and(|inner| inner.enabled_device_extensions().contains(&NAME))
    }

    /// Imports a slab as a buffer that kernels read and copies come from; `None` if the driver
    /// refuses.
    pub(crate) fn import_slab(device: &wgpu::Device, slab: &Slab) -> Option<ImportedSlab> {
        let imported = import_memory(device, slab)?;
        let (raw, is_released) = (imported.buffer, Arc::new(AtomicBool::new(false)));
        let released = Arc::clone(&is_released);
        let release = Box::new(move || {
            drop(imported);
            released.store(true, Ordering::Release);
        });
        // SAFETY: the callback owns the import, and is called when the buffer is dropped.
        let inner = unsafe { Buffer::from_raw_externally_owned(raw, release) };
        let descriptor = wgpu::BufferDescriptor {
            label: Some("slots in the host's memory"),
            size: slab.len_bytes() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        // SAFETY: made on this device with this size and these usages; all bytes of a slab are
        // initialised, with zeros.
        let buffer = unsafe { device.create_buffer_from_hal::<Vulkan>(inner, &descriptor) };
        Some(ImportedSlab { buffer, is_released })
    }

    /// The driver's objects for a slab.
    struct ImportedMemory {
        device: ash::Device,
        buffer: vk::Buffer,
        memory: vk::DeviceMemory,
        /// Dropped last.
        _slab: Slab,
    }

    impl Drop for ImportedMemory {
        fn drop(&mut self) {
            // SAFETY: made on this device, which its buffers keep; nothing uses it any more.
            unsafe { self.device.destroy_buffer(self.buffer, None) };
            // SAFETY: as above; the only buffer in this memory was just destroyed.
            unsafe { self.device.free_memory(self.memory, None) };
        }
    }

    fn import_memory(device: &wgpu::Device, slab: &Slab) -> Option<ImportedMemory> {
        // SAFETY: the driver's device is used within this call only, except for a copy of its
        // functions, which is dropped with a buffer of the device.
        let inner = unsafe { device.as_hal::<Vulkan>() }?;
        let device = inner.raw_device().clone();
        let instance = inner.shared_instance().raw_instance();
        let mut limits = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut limits);
        let physical = inner.raw_physical_device();
        // SAFETY: the device belongs to the instance.
        unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        let align = usize::try_from(limits.min_imported_host_pointer_alignment).ok()?.max(1);
        let (address, n_bytes) = (slab.address().as_ptr(), slab.len_bytes());
        if !address.addr().is_multiple_of(align) || !n_bytes.is_multiple_of(align) {
            return None;
        }
        let host = extension::Device::new(instance, &device);
        let query = host.fp().get_memory_host_pointer_properties_ext;
        let mut host_types = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: slabs are imported only on devices with this extension; the slab is alive.
        unsafe { query(device.handle(), HOST, address.cast(), &mut host_types) }.result().ok()?;
        let n_bytes = n_bytes as u64;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_SRC;
        let info = vk::BufferCreateInfo::default().size(n_bytes).usage(usage);
        // SAFETY: size, usage and kind of memory are set, as the specification requires.
        let buffer = unsafe { device.create_buffer(&info.push_next(&mut external), None) }.ok()?;
        // SAFETY: made just now.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let kinds = needs.memory_type_bits & host_types.memory_type_bits;
        let memory = (kinds != 0 && needs.size <= n_bytes).then(|| {
            let mut pointer = vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HOST);
            pointer.p_host_pointer = address.cast();
            let info = vk::MemoryAllocateInfo::default().allocation_size(n_bytes);
            let info = info.memory_type_index(kinds.trailing_zeros()).push_next(&mut pointer);
            // SAFETY: the slab has this many bytes, aligned as the driver requires, of this kind;
            // it stays alive until the memory is freed.
            unsafe { device.allocate_memory(&info, None) }.ok()
        });
        let Some(memory) = memory.flatten() else {
            // SAFETY: made above, and not used anywhere.
            unsafe { device.destroy_buffer(buffer, None) };
            return None;
        };
        let imported = ImportedMemory { device, buffer, memory, _slab: slab.clone() };
        // SAFETY: both were made above, and the buffer has no memory yet.
        unsafe { imported.device.bind_buffer_memory(buffer, memory, 0) }.ok()?;
        Some(imported)
    }
}

/// The Metal implementation, written from its documentation. It is untested on hardware; a check of
/// the device precedes its first use.
#[cfg(target_vendor = "apple")]
#[expect(unsafe_code, reason = "the driver gets memory that it did not allocate")]
mod metal {
    use std::ffi::c_void;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use block2::RcBlock;
    use moeflux_io::Slab;
    use objc2_metal::{MTLDevice as _, MTLResourceOptions};
    use wgpu::hal::api::Metal;
    use wgpu::hal::metal::Device;

    use super::ImportedSlab;

    /// Page size of Apple's processors: imported memory begins and ends on a page boundary.
    const PAGE_BYTES: usize = 16 << 10;

    /// Returns `None`: on Metal, an adapter needs no special way to be opened.
    pub(crate) fn open(
        _: &wgpu::Adapter,
        _: &wgpu::DeviceDescriptor<'_>,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        None
    }

    /// Returns the working set that Metal recommends as the maximum.
    pub(crate) fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
        // SAFETY: the driver's adapter is read within this call only.
        let inner = unsafe { adapter.as_hal::<Metal>() }?;
        let n_bytes = inner.raw_device().recommendedMaxWorkingSetSize();
        (n_bytes > 0).then_some(n_bytes)
    }

    /// Returns whether the device shares the CPU's memory.
    pub(crate) fn can_import_slabs(device: &wgpu::Device) -> bool {
        // SAFETY: the driver's device is read within this call only.
        let inner = unsafe { device.as_hal::<Metal>() };
        inner.is_some_and(|inner| inner.raw_device().hasUnifiedMemory())
    }

    /// Imports a slab as a buffer that kernels read and copies come from; `None` if the driver
    /// refuses.
    pub(crate) fn import_slab(device: &wgpu::Device, slab: &Slab) -> Option<ImportedSlab> {
        let (address, n_bytes) = (slab.address(), slab.len_bytes());
        if !address.addr().get().is_multiple_of(PAGE_BYTES) || !n_bytes.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let is_released = Arc::new(AtomicBool::new(false));
        let (released, kept) = (Arc::clone(&is_released), slab.clone());
        let release = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            // The slab lives at least as long as the block, which the buffer holds.
            let _slab = &kept;
            released.store(true, Ordering::Release);
        });
        // SAFETY: the driver's device is used within this call only.
        let inner = unsafe { device.as_hal::<Metal>() }?;
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: the memory has this many bytes in whole pages, and stays alive until Metal calls
        // the block.
        let raw = unsafe {
            inner.raw_device().newBufferWithBytesNoCopy_length_options_deallocator(
                address.cast(),
                n_bytes,
                options,
                Some(&release),
            )
        }?;
        let descriptor = wgpu::BufferDescriptor {
            label: Some("slots in the host's memory"),
            size: n_bytes as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer was made on this device just now, with this size.
        let inner = unsafe { Device::buffer_from_raw(raw, descriptor.size) };
        // SAFETY: made on this device with this size; all bytes of a slab are initialised, with
        // zeros.
        let buffer = unsafe { device.create_buffer_from_hal::<Metal>(inner, &descriptor) };
        Some(ImportedSlab { buffer, is_released })
    }
}
