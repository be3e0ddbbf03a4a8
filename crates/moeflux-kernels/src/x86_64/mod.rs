//! Kernels for x86-64.
//!
//! Decides by CPUID which tables this machine can run.

mod avx2;
mod avx512;

#[cfg(any(test, feature = "emulated"))]
pub(crate) use avx512::amx::emulated as emulated_amx;

use std::arch::x86_64::{__cpuid, _MM_HINT_T1, _mm_prefetch};

use crate::dispatch::KernelTable;
use crate::int8::Fetching;

/// AMD's number for the CPUs that came behind Zen 4.
const FAMILY_OF_ZEN_5: u32 = 0x1a;

/// Asks for memory that will be read soon, into the second cache. Any address will do.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a hint, which reads nothing that a program could see.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// How this CPU has codes brought from memory fastest. Taken for granted of its maker's and its
/// family's: measured on an Emerald Rapids, where streams are slower by a fifth than requests, on a
/// Zen 4, where they are faster by half and more, and on a Zen 5, where requests into the first
/// cache are faster still, while a Zen 4 halves its pace with them.
pub(crate) fn fetching() -> Fetching {
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    if name.as_flattened() != b"AuthenticAMD" {
        return Fetching::Requests;
    }
    // The family, where its four bits are all ones, is theirs and that of eight more.
    let extended_family = __cpuid(1).eax >> 20 & 0xff;
    if extended_family + 0xf >= FAMILY_OF_ZEN_5 {
        Fetching::NearRequests
    } else {
        Fetching::Streams
    }
}

/// The tables that this CPU can run, slowest first.
pub(crate) fn tables() -> impl Iterator<Item = &'static KernelTable> {
    let (avx2, avx512) =
        ([avx2::table(), avx2::vnni::table()], [avx512::table(), avx512::vnni::table()]);
    avx2.into_iter().chain(avx512).chain([avx512::amx::table()]).flatten()
}
