//! Owned, zeroed memory with a guaranteed alignment, into which weights are read.
//!
//! **Invariant:** the address is a multiple of [`AlignedBytes::ALIGN`] during the whole life of the
//! value, whatever its length. Every byte is initialised.

use std::fmt;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use memory::Allocation;

/// Size and alignment of huge pages, on machines that have them.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Aligned, initially zeroed memory that is freed with this value. It exposes an address and a
/// length, never a reference: users divide it into parts, and a reference to all of it would claim
/// that no part is written meanwhile.
pub(crate) struct AlignedMemory {
    address: NonNull<u8>,
    len_bytes: usize,
    _allocation: Option<Allocation>,
}

impl AlignedMemory {
    /// As [`AlignedBytes::zeroed`].
    pub(crate) fn zeroed(len_bytes: usize) -> Option<Self> {
        if len_bytes == 0 {
            let address = NonNull::without_provenance(NonZero::new(AlignedBytes::ALIGN)?);
            return Some(Self { address, len_bytes, _allocation: None });
        }
        let (address, allocation) = Allocation::zeroed(len_bytes)?;
        Some(Self { address, len_bytes, _allocation: Some(allocation) })
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// A fixed-size buffer whose address is page-aligned, and a multiple of 2 MiB if it is at least
/// that large. Large buffers use huge pages where available, which saves the CPU most of its
/// address translation.
pub struct AlignedBytes(AlignedMemory);

impl AlignedBytes {
    /// One page on Linux and Windows; a divisor of the 16 KiB page of Apple silicon.
    pub const ALIGN: usize = 4096;

    /// Allocates `len_bytes` zeroed bytes; returns `None` if the system has no room for them. On
    /// Unix, the system provides pages when they are first accessed.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Option<Self> {
        AlignedMemory::zeroed(len_bytes).map(Self)
    }
}

/// Uses anonymous mappings of the system.
#[cfg(all(unix, not(miri)))]
mod memory {
    use std::ffi::c_void;
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::HUGE_PAGE_BYTES;

    pub(super) struct Allocation {
        start: *mut c_void,
        len_bytes: usize,
    }

    impl Allocation {
        /// Maps `len_bytes` zeroed bytes, aligned to the page size, or to the huge page size if
        /// they fill at least one huge page.
        pub(super) fn zeroed(len_bytes: usize) -> Option<(NonNull<u8>, Self)> {
            let is_large = len_bytes >= HUGE_PAGE_BYTES;
            let mapped = if is_large { len_bytes.checked_add(HUGE_PAGE_BYTES)? } else { len_bytes };
            isize::try_from(mapped).ok()?;
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address that the system chooses touches no other memory.
            let start = unsafe { mmap_anonymous(null_mut(), mapped, protection, flags) }.ok()?;
            let allocation = Self { start, len_bytes: mapped };
            let first = start.cast::<u8>();
            let skipped = if is_large {
                first.addr().next_multiple_of(HUGE_PAGE_BYTES) - first.addr()
            } else {
                0
            };
            let first = NonNull::new(first.wrapping_add(skipped))?;
            if is_large {
                ask_for_huge_pages(first, len_bytes);
            }
            Some((first, allocation))
        }
    }

    #[cfg(target_os = "linux")]
    fn ask_for_huge_pages(first: NonNull<u8>, len_bytes: usize) {
        use rustix::mm::{Advice, madvise};

        // SAFETY: the range lies within a mapping that was just made; the advice changes how it is
        // backed, not its contents.
        let asked = unsafe { madvise(first.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
        // A kernel without huge pages uses small ones.
        let _ = asked;
    }

    #[cfg(not(target_os = "linux"))]
    fn ask_for_huge_pages(_: NonNull<u8>, _: usize) {}

    impl Drop for Allocation {
        fn drop(&mut self) {
            // SAFETY: `zeroed` made this mapping, and its owner, which alone borrowed from it, is
            // being dropped.
            let unmapped = unsafe { munmap(self.start, self.len_bytes) };
            debug_assert!(unmapped.is_ok(), "a mapping of our own");
        }
    }
}

/// Uses the standard library's allocator; Miri does not support mappings.
#[cfg(any(not(unix), miri))]
mod memory {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::{AlignedBytes, HUGE_PAGE_BYTES};

    pub(super) struct Allocation {
        address: NonNull<u8>,
        layout: Layout,
    }

    impl Allocation {
        /// Allocates `len_bytes` zeroed bytes; `len_bytes` is not 0.
        pub(super) fn zeroed(len_bytes: usize) -> Option<(NonNull<u8>, Self)> {
            let align =
                if len_bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { AlignedBytes::ALIGN };
            let layout = Layout::from_size_align(len_bytes, align).ok()?;
            // SAFETY: the layout has a non-zero size, as the caller checked.
            let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            Some((address, Self { address, layout }))
        }
    }

    impl Drop for Allocation {
        fn drop(&mut self) {
            // SAFETY: `zeroed` allocated this address with the same layout, and nothing else frees
            // it.
            unsafe { dealloc(self.address.as_ptr(), self.layout) }
        }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let AlignedMemory { address, len_bytes, .. } = self.0;
        // SAFETY: the address is valid for `len_bytes` initialised bytes (dangling only if zero),
        // which only this value exposes: nothing writes them while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), len_bytes) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let AlignedMemory { address, len_bytes, .. } = self.0;
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), len_bytes) }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.0.len_bytes)
    }
}

// SAFETY: the memory is owned, and any thread may free it.
unsafe impl Send for AlignedMemory {}
// SAFETY: `&AlignedMemory` exposes address and length, and reads or writes nothing.
unsafe impl Sync for AlignedMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_writable() {
        let lengths = [0, 1, 4095, 4096, 100_000, (2 << 20) - 1, 2 << 20, (5 << 20) + 3];
        // Miri needs a minute for the large ones.
        for len_bytes in lengths.into_iter().take(if cfg!(miri) { 5 } else { 8 }) {
            let mut bytes = AlignedBytes::zeroed(len_bytes).unwrap();
            assert_eq!(bytes.len(), len_bytes);
            let align =
                if len_bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { AlignedBytes::ALIGN };
            assert!(bytes.as_ptr().addr().is_multiple_of(align));
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
            assert!(bytes.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn an_absurd_size_is_refused_not_fatal() {
        assert!(AlignedBytes::zeroed(usize::MAX).is_none());
        assert!(AlignedBytes::zeroed(isize::MAX as usize).is_none());
    }
}
