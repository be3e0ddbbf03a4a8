//! What is known of a CPU beside its instruction sets: how it is asked for memory that will be read
//! soon, and which way of asking is fastest.
//!
//! **Invariant:** changes speed, never a result. Which tables a CPU can run is not decided here.

#[cfg(target_arch = "aarch64")]
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid, _MM_HINT_T1, _mm_prefetch};

/// AMD's number for the CPUs that came behind Zen 4.
#[cfg(target_arch = "x86_64")]
const FAMILY_OF_ZEN_5: u32 = 0x1a;

/// How one row of activations has the codes that it meets brought from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetching {
    /// Sixteen rows go by at a time, a line of each; what follows is asked for, into the first
    /// cache where the table says that it has room and else into the second.
    Requests,
    /// The same, always into the first cache: what that has no room for falls into the second.
    NearRequests,
    /// Narrow rows go by one after the other, asking for nothing; wide ones by `Requests`.
    Streams,
}

impl Default for Fetching {
    /// The fastest on this CPU, as far as that was measured.
    fn default() -> Self {
        #[cfg(target_arch = "x86_64")]
        return fetching();
        #[cfg(not(target_arch = "x86_64"))]
        Self::Requests
    }
}

/// Asks for memory that will be read soon, into the second cache. Any address will do.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a hint, which reads nothing that a program could see.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// Asks for memory that will be read soon, into the second cache. Any address will do.
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

/// Asks for nothing, where nobody found a way yet.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
pub(crate) fn prefetch(_: *const u8) {}

/// How this CPU has codes brought from memory fastest. Taken for granted of its maker's and its
/// family's: measured on an Emerald Rapids, where streams are slower by a fifth than requests, on a
/// Zen 4, where they are faster by half and more, and on a Zen 5, where requests into the first
/// cache are faster still, while a Zen 4 halves its pace with them.
#[cfg(target_arch = "x86_64")]
fn fetching() -> Fetching {
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
