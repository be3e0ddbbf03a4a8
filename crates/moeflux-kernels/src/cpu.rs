//! Properties of a CPU besides its instruction sets: how to prefetch memory, and the fastest way.
//!
//! **Invariant:** changes speed, never a result. Table selection is elsewhere.

#[cfg(target_arch = "aarch64")]
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid, _MM_HINT_T1, _mm_prefetch};

/// Family of AMD CPUs from Zen 5 on.
#[cfg(target_arch = "x86_64")]
const FAMILY_OF_ZEN_5: u32 = 0x1a;

/// Method by which one row of activations gets its codes from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetching {
    /// Sixteen matrix rows are processed at a time, a line of each. The next data is prefetched,
    /// into the first-level cache if the table says it has room and otherwise into the second-level
    /// cache.
    Requests,
    /// The same, always into the first-level cache, which evicts to the second level.
    NearRequests,
    /// Narrow rows are processed one after the other without prefetching; wide ones as `Requests`.
    Streams,
}

impl Default for Fetching {
    /// Returns the fastest method on this CPU, as far as measured.
    fn default() -> Self {
        #[cfg(target_arch = "x86_64")]
        return fetching();
        #[cfg(not(target_arch = "x86_64"))]
        Self::Requests
    }
}

/// Prefetches memory into the second-level cache. Any address is allowed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a hint, which reads nothing that a program could see.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// Prefetches memory into the second-level cache. Any address is allowed.
#[cfg(target_arch = "aarch64")]
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

/// Does nothing: this architecture has no prefetch method yet.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
pub(crate) fn prefetch(_: *const u8) {}

/// Returns the fastest method on this CPU, assumed equal for all CPUs of a maker and family.
/// Measured on an Emerald Rapids, where streams are a fifth slower than requests; on a Zen 4, where
/// they are faster by half and more; and on a Zen 5, where requests into the first-level cache are
/// faster still, while they halve the speed of a Zen 4.
#[cfg(target_arch = "x86_64")]
fn fetching() -> Fetching {
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    if name.as_flattened() != b"AuthenticAMD" {
        return Fetching::Requests;
    }
    // If the four bits of the family are all ones, the extended eight bits are added.
    let extended_family = __cpuid(1).eax >> 20 & 0xff;
    if extended_family + 0xf >= FAMILY_OF_ZEN_5 {
        Fetching::NearRequests
    } else {
        Fetching::Streams
    }
}
