//! macOS: reads the kernel's counters.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use super::room::MacPages;
use super::{MemoryPressure, ProcessMemory, STALLED_E4_ALL};

/// The kernel's level for sufficient memory; 2 is a warning, 4 is critical.
const PRESSURE_NORMAL: u32 = 1;

/// Upper bound on names; the longest have some forty letters.
const NAME_BYTES_MAX: usize = 256;

pub(super) fn total_memory_bytes() -> Option<u64> {
    number::<u64>(c"hw.memsize")
}

pub(super) fn available_memory_bytes() -> Option<u64> {
    Some(pages()?.available_bytes(total_memory_bytes()?))
}

pub(super) fn process_memory_bytes() -> Option<ProcessMemory> {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut usage: libc::rusage_info_v4 = unsafe { std::mem::zeroed() };
    let buffer: *mut libc::rusage_info_v4 = &raw mut usage;
    let own = c_int::try_from(std::process::id()).ok()?;
    // SAFETY: the kernel writes a structure of this version, and the buffer is one.
    let status = unsafe { libc::proc_pid_rusage(own, libc::RUSAGE_INFO_V4, buffer.cast()) };
    (status == 0).then(|| ProcessMemory {
        now_bytes: usage.ri_phys_footprint,
        peak_bytes: usage.ri_lifetime_max_phys_footprint.max(usage.ri_phys_footprint),
    })
}

pub(super) fn processor_name() -> Option<String> {
    let mut name = [0_u8; NAME_BYTES_MAX];
    let n_bytes = sysctl(c"machdep.cpu.brand_string", &mut name)?;
    let text = CStr::from_bytes_until_nul(name.get(..n_bytes)?).ok()?;
    Some(text.to_string_lossy().into_owned())
}

/// The kernel's own assessment of memory pressure.
#[derive(Debug)]
pub(super) struct PressureWatch;

impl PressureWatch {
    pub(super) fn open() -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "other systems store handles in it")]
    pub(super) fn sample(&mut self) -> MemoryPressure {
        let level = number::<u32>(c"kern.memorystatus_vm_pressure_level");
        let stalled_e4 = level.map(|it| if it > PRESSURE_NORMAL { STALLED_E4_ALL } else { 0 });
        MemoryPressure { available_bytes: available_memory_bytes(), stalled_e4 }
    }
}

fn pages() -> Option<MacPages> {
    // SAFETY: a structure of numbers, for which zeros are valid values.
    let mut counts: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut n_words = libc::HOST_VM_INFO64_COUNT;
    let buffer: *mut libc::vm_statistics64 = &raw mut counts;
    #[expect(deprecated, reason = "libc gives these away to a crate of mach's calls alone")]
    // SAFETY: the kernel writes at most `n_words` numbers, which the structure has; the port of
    // this host is valid as long as the process lives.
    let status = unsafe {
        libc::host_statistics64(
            libc::mach_host_self(),
            libc::HOST_VM_INFO64,
            buffer.cast(),
            &raw mut n_words,
        )
    };
    (status == libc::KERN_SUCCESS).then_some(())?;
    Some(MacPages {
        page_bytes: number::<u64>(c"hw.pagesize").or_else(|| of_32_bits(c"hw.pagesize"))?,
        n_wired: counts.wire_count.into(),
        n_internal: counts.internal_page_count.into(),
        n_purgeable: counts.purgeable_count.into(),
        n_compressor: counts.compressor_page_count.into(),
    })
}

/// Reads a number as 32 bits: the width of some has changed.
fn of_32_bits(name: &CStr) -> Option<u64> {
    number::<u32>(name).map(u64::from)
}

/// Reads a number by its name in the kernel.
fn number<T: Default>(name: &CStr) -> Option<T> {
    let mut value = T::default();
    let mut n_bytes = size_of::<T>();
    let buffer: *mut T = &raw mut value;
    // SAFETY: the kernel writes at most `n_bytes`, which is the size of the number.
    let status = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            buffer.cast::<c_void>(),
            &raw mut n_bytes,
            ptr::null_mut(),
            0,
        )
    };
    (status == 0 && n_bytes == size_of::<T>()).then_some(value)
}

/// Reads bytes by their name in the kernel. Returns how many there are.
fn sysctl(name: &CStr, bytes: &mut [u8]) -> Option<usize> {
    let mut n_bytes = bytes.len();
    // SAFETY: the kernel writes at most `n_bytes`, which is the length of the buffer.
    let status = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            bytes.as_mut_ptr().cast(),
            &raw mut n_bytes,
            ptr::null_mut(),
            0,
        )
    };
    (status == 0).then_some(n_bytes)
}
