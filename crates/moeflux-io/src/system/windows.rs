//! Windows: uses its API.

use std::ptr;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};
use windows_sys::Win32::System::JobObjects::{
    JOB_OBJECT_LIMIT_JOB_MEMORY, JOB_OBJECT_LIMIT_PROCESS_MEMORY,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    QueryInformationJobObject,
};
use windows_sys::Win32::System::Memory::{
    CreateMemoryResourceNotification, LowMemoryResourceNotification,
    QueryMemoryResourceNotification,
};
use windows_sys::Win32::System::ProcessStatus::{GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::GetCurrentProcess;
use windows_sys::core::w;

use super::room::WindowsMemory;
use super::{MemoryPressure, ProcessMemory, STALLED_E4_ALL};

/// Upper bound on names; the longest have some fifty letters.
const NAME_LETTERS_MAX: usize = 256;

pub(super) fn total_memory_bytes() -> Option<u64> {
    status().map(|it| it.ullTotalPhys)
}

pub(super) fn available_memory_bytes() -> Option<u64> {
    let status = status()?;
    let room = WindowsMemory {
        free_bytes: status.ullAvailPhys,
        commit_bytes: status.ullAvailPageFile,
        job_bytes: job_bytes(),
        process_bytes: process_memory_bytes().map_or(0, |it| it.now_bytes),
    };
    Some(room.available_bytes())
}

/// Returns the committed memory, to which the limits of process and machine apply.
pub(super) fn process_memory_bytes() -> Option<ProcessMemory> {
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    let n_bytes = length_of(&counters)?;
    // SAFETY: the handle of this process is always valid, and the system writes at most `n_bytes`,
    // the size of the structure.
    let is_known = unsafe { GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, n_bytes) };
    (is_known != 0).then_some(ProcessMemory {
        now_bytes: counters.PagefileUsage as u64,
        peak_bytes: counters.PeakPagefileUsage.max(counters.PagefileUsage) as u64,
    })
}

pub(super) fn processor_name() -> Option<String> {
    let mut name = [0_u16; NAME_LETTERS_MAX];
    let mut n_bytes = u32::try_from(size_of_val(&name)).ok()?;
    // SAFETY: both names end in a zero, and the system writes at most `n_bytes`, the size of the
    // buffer.
    let failure = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!("HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0"),
            w!("ProcessorNameString"),
            RRF_RT_REG_SZ,
            ptr::null_mut(),
            name.as_mut_ptr().cast(),
            &raw mut n_bytes,
        )
    };
    let end = name.iter().position(|letter| *letter == 0)?;
    (failure == 0).then(|| String::from_utf16_lossy(&name[..end]))
}

/// The system's own assessment of memory pressure.
#[derive(Debug)]
pub(super) struct PressureWatch {
    low: Option<Notification>,
}

impl PressureWatch {
    pub(super) fn open() -> Self {
        Self { low: Notification::open() }
    }

    pub(super) fn sample(&mut self) -> MemoryPressure {
        let is_low = self.low.as_ref().and_then(Notification::is_set);
        let stalled_e4 = is_low.map(|it| if it { STALLED_E4_ALL } else { 0 });
        MemoryPressure { available_bytes: available_memory_bytes(), stalled_e4 }
    }
}

/// An object that is set while the system is short of memory.
#[derive(Debug)]
struct Notification(HANDLE);

// SAFETY: the handle names an object of the system, which any thread may query.
unsafe impl Send for Notification {}
// SAFETY: a query changes nothing.
unsafe impl Sync for Notification {}

impl Notification {
    fn open() -> Option<Self> {
        // SAFETY: creates an object, or returns a null handle.
        let handle = unsafe { CreateMemoryResourceNotification(LowMemoryResourceNotification) };
        (!handle.is_null()).then_some(Self(handle))
    }

    fn is_set(&self) -> Option<bool> {
        let mut is_set = 0;
        // SAFETY: the handle is open as long as `self` lives, and the system writes one number.
        let is_known = unsafe { QueryMemoryResourceNotification(self.0, &raw mut is_set) };
        (is_known != 0).then_some(is_set != 0)
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nothing uses it after this.
        unsafe {
            CloseHandle(self.0);
        }
    }
}

fn status() -> Option<MEMORYSTATUSEX> {
    let mut status = MEMORYSTATUSEX::default();
    status.dwLength = length_of(&status)?;
    // SAFETY: the structure states its length, and the system writes no more.
    let is_known = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    (is_known != 0).then_some(status)
}

/// Returns the bytes that this process may commit within its job; other processes of the job may
/// use part of them.
fn job_bytes() -> Option<u64> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    let n_bytes = length_of(&limits)?;
    let buffer: *mut JOBOBJECT_EXTENDED_LIMIT_INFORMATION = &raw mut limits;
    // SAFETY: a null handle means the job of this process, and the system writes at most `n_bytes`,
    // the size of the structure. Without a job, the call fails.
    let is_known = unsafe {
        QueryInformationJobObject(
            ptr::null_mut(),
            JobObjectExtendedLimitInformation,
            buffer.cast(),
            n_bytes,
            ptr::null_mut(),
        )
    };
    let flags = if is_known == 0 { 0 } else { limits.BasicLimitInformation.LimitFlags };
    let limited = |flag, n_bytes: usize| (flags & flag != 0).then_some(n_bytes as u64);
    let of_process = limited(JOB_OBJECT_LIMIT_PROCESS_MEMORY, limits.ProcessMemoryLimit);
    let of_job = limited(JOB_OBJECT_LIMIT_JOB_MEMORY, limits.JobMemoryLimit);
    [of_process, of_job].into_iter().flatten().min()
}

fn length_of<T>(value: &T) -> Option<u32> {
    u32::try_from(size_of_val(value)).ok()
}
