//! Kernels for x86-64.
//!
//! Decides by CPUID which tables this machine can run.

mod avx2;
mod avx512;

#[cfg(any(test, feature = "emulated"))]
pub(crate) use avx512::amx::emulated as emulated_amx;

use std::arch::x86_64::{__cpuid, _MM_HINT_T1, _mm_prefetch};

use crate::dispatch::KernelTable;

/// Asks for memory that will be read soon, into the second cache. Any address will do.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a hint, which reads nothing that a program could see.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// Whether this CPU fetches a stream of memory ahead faster than it answers requests for it. Taken
/// for granted of its maker's: measured on a Zen 4 (faster by half and more) and an Emerald Rapids
/// (slower by a fifth).
pub(crate) fn fetches_streams() -> bool {
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD"
}

/// The tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    let (avx2, avx512) =
        ([avx2::table(), avx2::vnni::table()], [avx512::table(), avx512::vnni::table()]);
    avx2.into_iter().chain(avx512).chain([avx512::amx::table()]).flatten()
}
