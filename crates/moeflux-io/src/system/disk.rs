//! Free space on the disk of an existing folder.

use std::path::Path;

#[cfg(unix)]
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(windows)]
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    use std::os::windows::ffi::OsStrExt;
    use std::ptr::null_mut;

    use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;

    let name: Vec<u16> = dir.as_os_str().encode_wide().chain([0]).collect();
    let mut n_bytes = 0;
    // SAFETY: the name ends in a zero, and the system writes one number; the others are not
    // requested.
    let is_known =
        unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &raw mut n_bytes, null_mut(), null_mut()) };
    (is_known != 0).then_some(n_bytes)
}

#[cfg(not(any(unix, windows)))]
pub(super) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_known() {
        assert!(free_bytes(&std::env::temp_dir()).is_some_and(|free| free > 0));
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")), None);
    }
}
