//! macOS: reads the kernel's counters. The cores of level 0 are the fastest.

use std::ffi::{CStr, c_int};
use std::num::NonZeroUsize;
use std::ptr;

/// Macs with Intel processors have no levels.
pub(super) fn n_performance_cores() -> Option<NonZeroUsize> {
    number(c"hw.perflevel0.physicalcpu").or_else(|| number(c"hw.physicalcpu"))
}

fn number(name: &CStr) -> Option<NonZeroUsize> {
    let mut value: c_int = 0;
    let mut n_bytes = size_of::<c_int>();
    let buffer: *mut c_int = &raw mut value;
    // SAFETY: the kernel writes at most `n_bytes`, which is the size of the number.
    let status = unsafe {
        libc::sysctlbyname(name.as_ptr(), buffer.cast(), &raw mut n_bytes, ptr::null_mut(), 0)
    };
    let is_said = status == 0 && n_bytes == size_of::<c_int>();
    is_said.then(|| usize::try_from(value).ok()).flatten().and_then(NonZeroUsize::new)
}
