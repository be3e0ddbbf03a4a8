//! Windows: reads the system's list of cores.

use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::ptr;

use windows_sys::Win32::System::SystemInformation::{
    GROUP_AFFINITY, GetLogicalProcessorInformationEx, PROCESSOR_RELATIONSHIP,
    RelationProcessorCore, SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessAffinityMask, GetProcessGroupAffinity,
};

use super::records::{Core, n_fastest};

/// Upper bound on the groups of 64 processors of any system.
const N_GROUPS_MAX: usize = 64;

pub(super) fn n_performance_cores() -> Option<NonZeroUsize> {
    n_fastest(&cores(&list()?), allowed())
}

/// Returns the list in the system's format: records of different lengths.
fn list() -> Option<Vec<u8>> {
    let mut n_bytes = 0;
    // SAFETY: without a buffer only the length is written.
    unsafe {
        GetLogicalProcessorInformationEx(RelationProcessorCore, ptr::null_mut(), &raw mut n_bytes);
    }
    let mut bytes = vec![0_u8; usize::try_from(n_bytes).ok()?];
    let buffer: *mut SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX = bytes.as_mut_ptr().cast();
    // SAFETY: the system writes at most `n_bytes`, the length of the buffer; it is read as bytes.
    let is_known = unsafe {
        GetLogicalProcessorInformationEx(RelationProcessorCore, buffer, &raw mut n_bytes)
    };
    bytes.truncate(usize::try_from(n_bytes).ok()?);
    (is_known != 0).then_some(bytes)
}

fn cores(list: &[u8]) -> Vec<Core> {
    const SIZE_AT: usize = offset_of!(SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX, Size);
    const CORE_AT: usize = offset_of!(SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX, Anonymous);
    const GROUP_AT: usize = CORE_AT + offset_of!(PROCESSOR_RELATIONSHIP, GroupMask);
    let mut cores = Vec::new();
    let mut rest = list;
    while let Some(n_bytes) = number::<4>(rest, SIZE_AT).map(u32::from_le_bytes) {
        let class =
            number::<1>(rest, CORE_AT + offset_of!(PROCESSOR_RELATIONSHIP, EfficiencyClass));
        let group = number::<2>(rest, GROUP_AT + offset_of!(GROUP_AFFINITY, Group));
        let mask = number::<8>(rest, GROUP_AT + offset_of!(GROUP_AFFINITY, Mask));
        let (Some([class]), Some(group), Some(mask)) = (class, group, mask) else { break };
        let (group, mask) = (u16::from_le_bytes(group), u64::from_le_bytes(mask));
        cores.push(Core { class, group, mask });
        let next = usize::try_from(n_bytes).ok().filter(|it| *it > 0);
        let Some(after) = next.and_then(|it| rest.get(it..)) else { break };
        rest = after;
    }
    cores
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Returns the group that this process may use and its mask there; `None` if it may use several.
fn allowed() -> Option<(u16, u64)> {
    let (mut groups, mut n_groups) = ([0_u16; N_GROUPS_MAX], N_GROUPS_MAX as u16);
    // SAFETY: the handle of this process is always valid, and the system writes at most `n_groups`
    // numbers, which the array has.
    let is_known = unsafe {
        GetProcessGroupAffinity(GetCurrentProcess(), &raw mut n_groups, groups.as_mut_ptr())
    };
    if is_known == 0 || n_groups != 1 {
        return None;
    }
    let (mut mask, mut of_system) = (0_usize, 0_usize);
    // SAFETY: as above; two numbers are written.
    let is_known =
        unsafe { GetProcessAffinityMask(GetCurrentProcess(), &raw mut mask, &raw mut of_system) };
    (is_known != 0 && mask != 0).then_some((groups[0], mask as u64))
}
