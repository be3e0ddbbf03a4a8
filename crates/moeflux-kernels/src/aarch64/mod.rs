//! Kernels for aarch64.
//!
//! NEON is part of the architecture's baseline; it is asked for all the same.

mod neon;

use std::arch::asm;

use crate::dispatch::KernelTable;

/// Asks for memory that will be read soon, into the second cache. Any address will do.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a hint: no address faults.
    unsafe {
        asm!(
            "prfm pldl2keep, [{}]",
            in(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// The tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    [neon::table(), neon::dotprod::table(), neon::i8mm::table()].into_iter().flatten()
}
