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
    use wgpu::hal::vulkan::{Buffer, CreateDeviceCallbackArgs, Device};

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
        // SAFETY: the driver's adapter must not be destroyed: it is only read, and a device opened.
        let inner = unsafe { adapter.as_hal::<Vulkan>() }?;
        let capabilities = inner.physical_device_capabilities();
        let instance_version = inner.shared_instance().instance_api_version();
        // The extension and the calls of `import_memory` need this version or further extensions.
        let has_version =
            instance_version.min(capabilities.properties().api_version) >= vk::API_VERSION_1_1;
        if !has_version || !capabilities.supports_extension(NAME) {
            return None;
        }
        let extend =
            Box::new(|args: CreateDeviceCallbackArgs<'_, '_, '_>| args.extensions.push(NAME));
        let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
        let hints = &descriptor.memory_hints;
        // SAFETY: features and limits must be the adapter's: `Gpu::open`, the only caller, takes
        // them from it. The callback must add only what the adapter supports, and remove nothing:
        // it adds one extension, which the adapter has, together with the version it depends on.
        let opened = unsafe { inner.open_with_callback(features, limits, hints, Some(extend)) };
        // SAFETY: the device must be of this adapter, and must have the descriptor's features: it
        // was opened above on this adapter, with these features.
        unsafe { adapter.create_device_from_hal(opened.ok()?, descriptor) }.ok()
    }

    /// Returns the memory of an adapter, if its driver reports it.
    pub(crate) fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
        // SAFETY: the driver's adapter must not be destroyed: it is only read.
        let inner = unsafe { adapter.as_hal::<Vulkan>() }?;
        let (instance, device) =
            (inner.shared_instance().raw_instance(), inner.raw_physical_device());
        // SAFETY: the device must be one of this instance: both are the adapter's. `inner` keeps
        // the instance until the end of this call.
        let properties = unsafe { instance.get_physical_device_memory_properties(device) };
        let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
        // Only heaps of the device's own memory have flags. The largest of them is that memory, and
        // others are parts of it that the host sees.
        heaps.iter().filter(|heap| !heap.flags.is_empty()).map(|heap| heap.size).max()
    }

    /// Returns whether a device was opened with support for slab import.
    pub(crate) fn can_import_slabs(device: &wgpu::Device) -> bool {
        // SAFETY: the driver's device must not be destroyed: it is only read.
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
        // SAFETY: the raw buffer must outlive this one: the callback owns it, and is called when
        // this one is dropped. wgpu must not map it: the descriptor has no usage that allows it.
        let inner = unsafe { Buffer::from_raw_externally_owned(raw, release) };
        let descriptor = wgpu::BufferDescriptor {
            label: Some("slots in the host's memory"),
            size: slab.len_bytes() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer must be of this device and as the descriptor says: `import_memory`
        // made it on this device with this size and these usages. It must be initialised: a slab is
        // made of zeros, and the import of memory that the host sees leaves its contents. It must
        // not be empty: a slab has slots, and slots have bytes.
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
            // SAFETY: the buffer must be of this device, and the device alive: `import_memory` made
            // it there, and wgpu drops a buffer before the device. No submission may use it: wgpu
            // keeps a buffer until the last one is complete, and a failed import was never used.
            // Both ends must use the same allocator: neither names one.
            unsafe { self.device.destroy_buffer(self.buffer, None) };
            // SAFETY: as above: of this device, which is alive; in no submission, because only that
            // buffer was bound to it; the driver's allocator at both ends. It is not mapped.
            unsafe { self.device.free_memory(self.memory, None) };
        }
    }

    /// The device must have been opened with support for slab import.
    fn import_memory(device: &wgpu::Device, slab: &Slab) -> Option<ImportedMemory> {
        let n_bytes_max = device.limits().max_buffer_size;
        // SAFETY: the driver's device must not be destroyed: this call only makes objects of it.
        // The copy of its functions that they keep does not destroy it when dropped.
        let inner = unsafe { device.as_hal::<Vulkan>() }?;
        let device = inner.raw_device().clone();
        let instance = inner.shared_instance().raw_instance();
        let mut limits = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut limits);
        let physical = inner.raw_physical_device();
        // SAFETY: the device must be one of this instance: both are the device's, and `inner` keeps
        // the instance. The instance must have version 1.1, and the chain only what the device
        // knows: a device with the extension of `limits` was opened by `open`, which checks both.
        // Each struct must be valid during the call: they are locals.
        unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        let align = usize::try_from(limits.min_imported_host_pointer_alignment).ok()?.max(1);
        let (address, n_bytes) = (slab.address().as_ptr(), slab.len_bytes());
        if !address.addr().is_multiple_of(align)
            || !n_bytes.is_multiple_of(align)
            || n_bytes as u64 > n_bytes_max
        {
            return None;
        }
        let host = extension::Device::new(instance, &device);
        let query = host.fp().get_memory_host_pointer_properties_ext;
        let mut host_types = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the device must have the extension: `GpuBackend::map_slots` allows imports only
        // after `can_import_slabs`. The address must be of host memory, aligned as the driver
        // requires: `slab` is alive, and its address was checked above. `HOST` must be the type of
        // host allocations, and the result a valid struct: they are.
        unsafe { query(device.handle(), HOST, address.cast(), &mut host_types) }.result().ok()?;
        let n_bytes = n_bytes as u64;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_SRC;
        let kinds = importable_kinds(&inner, usage, n_bytes) & host_types.memory_type_bits;
        if kinds == 0 {
            return None;
        }
        let info = vk::BufferCreateInfo::default().size(n_bytes).usage(usage);
        // SAFETY: the size must be positive and at most the driver's bound: slabs are not empty,
        // and wgpu's limit, checked above, is at most that bound. There must be a usage: there are
        // two. The external memory must be of a type that such a buffer can have:
        // `importable_kinds` asked. Flags and sharing are the defaults, which require nothing else.
        let buffer = unsafe { device.create_buffer(&info.push_next(&mut external), None) }.ok()?;
        // SAFETY: the buffer must be of this device: it was made there just now.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let kinds = kinds & needs.memory_type_bits;
        let memory = (kinds != 0 && needs.size <= n_bytes).then(|| {
            let mut pointer = vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HOST);
            pointer.p_host_pointer = address.cast();
            let info = vk::MemoryAllocateInfo::default().allocation_size(n_bytes);
            let info = info.memory_type_index(kinds.trailing_zeros()).push_next(&mut pointer);
            // SAFETY: address and size must be multiples of the driver's alignment: checked above.
            // The slab must have this many bytes and stay allocated until the memory is freed: it
            // has them, and `ImportedMemory` drops its handle to it last. The driver must report
            // the kind of memory for this address, the host must see it, because it goes on using
            // the slab, its flags must not need features that are off, and its heap must be at
            // least this large: `kinds` has no others. The chain must have one import and no
            // dedicated allocation: it has only `pointer`. Accesses of host and device must not
            // conflict: lenders of slots write none that a kernel reads. The driver bounds the
            // number of allocations, at 4096 or more. Nothing checks that: 4096 slabs of 32 MiB are
            // 128 GiB.
            unsafe { device.allocate_memory(&info, None) }.ok()
        });
        let Some(memory) = memory.flatten() else {
            // SAFETY: the buffer must be of this device and in no submission, with the same
            // allocator as at its creation: it was made above without one, and nothing else knows
            // it.
            unsafe { device.destroy_buffer(buffer, None) };
            return None;
        };
        let imported = ImportedMemory { device, buffer, memory, _slab: slab.clone() };
        // SAFETY: buffer and memory must be of this device, the buffer without memory and known to
        // no other thread: both were made above. The memory must be of a kind and size that the
        // buffer needs: `kinds` and `needs.size` were compared above. It must be imported as a type
        // that the buffer was made for: both are `HOST`. The offset must be aligned and within the
        // memory: it is 0. A buffer that requires memory of its own must have it: drivers must not
        // require that with `HOST`.
        unsafe { imported.device.bind_buffer_memory(buffer, memory, 0) }.ok()?;
        Some(imported)
    }

    /// Returns, as bits, the kinds of memory as which `n_bytes` can be imported for such a buffer,
    /// if the host goes on using them.
    fn importable_kinds(device: &Device, usage: vk::BufferUsageFlags, n_bytes: u64) -> u32 {
        let (instance, physical) =
            (device.shared_instance().raw_instance(), device.raw_physical_device());
        let info = vk::PhysicalDeviceExternalBufferInfo::default().usage(usage).handle_type(HOST);
        let mut external = vk::ExternalBufferProperties::default();
        // SAFETY: the device must be one of this instance, which must have version 1.1, and the
        // structs must be valid during the call: see the properties in `import_memory`.
        unsafe {
            instance.get_physical_device_external_buffer_properties(physical, &info, &mut external);
        }
        let external = external.external_memory_properties;
        if !external.external_memory_features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
            || !external.compatible_handle_types.contains(HOST)
        {
            return 0;
        }
        // SAFETY: the device must be one of this instance: both are the device's.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        // The host sees the memory, without flushes. Drivers may report other kinds as well.
        let needed = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        // These need features that wgpu does not enable.
        let refused =
            vk::MemoryPropertyFlags::PROTECTED | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD;
        let fits = |kind: &vk::MemoryType| {
            let (flags, heap) =
                (kind.property_flags, memory.memory_heaps[kind.heap_index as usize]);
            flags.contains(needed) && !flags.intersects(refused) && heap.size >= n_bytes
        };
        let kinds = (0..).zip(memory.memory_types_as_slice()).filter(|(_, kind)| fits(kind));
        kinds.fold(0, |bits, (idx, _): (u32, _)| bits | 1 << idx)
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
        // SAFETY: the driver's adapter must not be destroyed: it is only read.
        let inner = unsafe { adapter.as_hal::<Metal>() }?;
        let n_bytes = inner.raw_device().recommendedMaxWorkingSetSize();
        (n_bytes > 0).then_some(n_bytes)
    }

    /// Returns whether the device shares the CPU's memory.
    pub(crate) fn can_import_slabs(device: &wgpu::Device) -> bool {
        // SAFETY: the driver's device must not be destroyed: it is only read.
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
        // SAFETY: the driver's device must not be destroyed: this call only makes a buffer of it.
        let inner = unsafe { device.as_hal::<Metal>() }?;
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: the address must be that of `n_bytes` bytes in whole pages of one mapping, which
        // stay until Metal calls the block: a slab is one mapping, its address and size were
        // checked above, and the block owns a handle to it. Metal may call the block on any thread:
        // what it owns, a slab and an atomic flag, can be sent and shared.
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
        // SAFETY: wgpu-hal states no conditions. Buffer and size must belong together: the buffer
        // was made just now, with this size.
        let inner = unsafe { Device::buffer_from_raw(raw, descriptor.size) };
        // SAFETY: the buffer must be of this device and as the descriptor says: it was made above
        // on this device with this size, and Metal's buffers have no usages. It must be
        // initialised: a slab is made of zeros. It must not be empty: a slab has slots, and slots
        // have bytes.
        let buffer = unsafe { device.create_buffer_from_hal::<Metal>(inner, &descriptor) };
        Some(ImportedSlab { buffer, is_released })
    }
}
