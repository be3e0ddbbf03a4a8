//! Owned memory at a stated alignment, zeroed: where weights are read to.
//!
//! **Invariant:** the address is a multiple of [`AlignedBytes::ALIGN`] for the whole life of the
//! value, whatever its length; every byte is initialised.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A fixed-size buffer whose address is page-aligned.
pub struct AlignedBytes {
    address: NonNull<u8>,
    len_bytes: usize,
}

impl AlignedBytes {
    /// One page on Linux and Windows; a divisor of the 16 KiB page of Apple silicon.
    pub const ALIGN: usize = 4096;

    /// `len_bytes` zeroed bytes, or `None` if the system has no room for them.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Option<Self> {
        if len_bytes == 0 {
            let address = NonNull::without_provenance(NonZero::new(Self::ALIGN)?);
            return Some(Self { address, len_bytes });
        }
        let layout = Layout::from_size_align(len_bytes, Self::ALIGN).ok()?;
        // SAFETY: the layout has a non-zero size, checked above.
        let address = unsafe { alloc_zeroed(layout) };
        NonNull::new(address).map(|address| Self { address, len_bytes })
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len_bytes == 0 {
            return;
        }
        let layout = Layout::from_size_align(self.len_bytes, Self::ALIGN);
        let layout = layout.expect("the same layout was valid when the memory was allocated");
        // SAFETY: `zeroed` allocated this address with the same layout, and nobody else frees it.
        unsafe { dealloc(self.address.as_ptr(), layout) }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `address` is valid for `len_bytes` initialised bytes (dangling only if zero),
        // and is borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len_bytes) }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len_bytes)
    }
}

// SAFETY: the memory is owned and plain bytes; `&AlignedBytes` gives only shared reads.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_writable() {
        for len_bytes in [0, 1, 4095, 4096, 100_000] {
            let mut bytes = AlignedBytes::zeroed(len_bytes).unwrap();
            assert_eq!(bytes.len(), len_bytes);
            assert!(bytes.as_ptr().addr().is_multiple_of(AlignedBytes::ALIGN));
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
