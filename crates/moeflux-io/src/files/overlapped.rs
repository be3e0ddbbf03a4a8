//! Positional reads on Windows, of files opened for overlapped I/O.
//!
//! Windows serialises all reads of other handles, even from several threads. Here each read has its
//! own event, so that each waiting thread has a read in flight. **Invariant:** when `read_at`
//! returns, the read has ended, and nothing writes to its target any more.

use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{ERROR_HANDLE_EOF, ERROR_IO_PENDING};
use windows_sys::Win32::Storage::FileSystem::ReadFile;
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED, OVERLAPPED_0_0};
use windows_sys::Win32::System::Threading::CreateEventW;

/// Flag required for files passed to [`read_at`].
pub(crate) const FILE_FLAG_OVERLAPPED: i32 = 0x4000_0000;

/// Upper bound on the size of one read; a multiple of every block size.
const READ_BYTES_MAX: u32 = 1 << 30;

/// Reads what is available from `offset_bytes` with one request; returns 0 at the end of the file.
pub(crate) fn read_at(file: &File, offset_bytes: u64, target: &mut [u8]) -> io::Result<usize> {
    let event = event()?;
    let mut overlapped = OVERLAPPED { hEvent: event.as_raw_handle(), ..OVERLAPPED::default() };
    overlapped.Anonymous.Anonymous = offset(offset_bytes);
    let len = u32::try_from(target.len()).unwrap_or(READ_BYTES_MAX).min(READ_BYTES_MAX);
    let (handle, bytes) = (file.as_raw_handle(), target.as_mut_ptr());
    // SAFETY: `target` has `len` writable bytes. It, `overlapped` and the event stay valid until
    // the read has ended, which this function waits for.
    let started = unsafe { ReadFile(handle, bytes, len, null_mut(), &raw mut overlapped) };
    if started == 0 {
        let error = io::Error::last_os_error();
        if !is(&error, ERROR_IO_PENDING) {
            return at_end(error);
        }
    }
    let mut n_bytes = 0;
    // SAFETY: this is the structure of the read that was started; the call waits for its end.
    let ended = unsafe { GetOverlappedResult(handle, &raw const overlapped, &raw mut n_bytes, 1) };
    if ended == 0 { at_end(io::Error::last_os_error()) } else { Ok(n_bytes as usize) }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn offset(offset_bytes: u64) -> OVERLAPPED_0_0 {
    OVERLAPPED_0_0 { Offset: offset_bytes as u32, OffsetHigh: (offset_bytes >> 32) as u32 }
}

/// Creates an event that a read sets when it ends.
fn event() -> io::Result<OwnedHandle> {
    // SAFETY: no attributes and no name: nothing is read.
    let handle = unsafe { CreateEventW(null(), 1, 0, null()) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new handle, which nothing else closes.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

/// Returns 0 at the end of the file, which is an error on Windows.
fn at_end(error: io::Error) -> io::Result<usize> {
    if is(&error, ERROR_HANDLE_EOF) { Ok(0) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;
    use windows_sys::Wdk::Storage::FileSystem::{
        FILE_MODE_INFORMATION, FILE_SYNCHRONOUS_IO_ALERT, FILE_SYNCHRONOUS_IO_NONALERT,
        FileModeInformation, NtQueryInformationFile,
    };
    use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;

    use super::*;
    use crate::files::identity::open_regular;

    /// Returns whether the system serialises reads of the file.
    fn is_synchronous(file: &File) -> bool {
        let (mut status, mut mode) = (IO_STATUS_BLOCK::default(), FILE_MODE_INFORMATION::default());
        let (to, class) = ((&raw mut mode).cast(), FileModeInformation);
        let len = size_of::<FILE_MODE_INFORMATION>() as u32;
        // SAFETY: both structures are writable, and one is of the stated length.
        let code = unsafe {
            NtQueryInformationFile(file.as_raw_handle(), &raw mut status, to, len, class)
        };
        assert_eq!(code, 0, "what the system knows of an open file");
        mode.Mode & (FILE_SYNCHRONOUS_IO_ALERT | FILE_SYNCHRONOUS_IO_NONALERT) != 0
    }

    #[test]
    fn the_system_may_do_reads_side_by_side() {
        let folder = TempDir::new();
        let path = folder.write("f", b"0123456789");
        assert!(is_synchronous(&open_regular(&path, 0).unwrap().0));
        assert!(!is_synchronous(&open_regular(&path, FILE_FLAG_OVERLAPPED).unwrap().0));
    }

    #[test]
    fn reads_return_the_available_bytes() {
        let folder = TempDir::new();
        let file = open_regular(&folder.write("f", b"0123456789"), FILE_FLAG_OVERLAPPED).unwrap().0;
        let check = |offset_bytes: u64, expected: &[u8]| {
            let mut target = [0; 4];
            let n_bytes = read_at(&file, offset_bytes, &mut target).unwrap();
            assert_eq!(&target[..n_bytes], expected, "from {offset_bytes}");
        };
        check(0, b"0123");
        check(3, b"3456");
        check(8, b"89");
        check(10, b"");
        check(1 << 40, b"");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..500).for_each(|it| check(it % 7, &b"0123456789"[(it % 7) as usize..][..4]))
                });
            }
        });
    }

    #[test]
    fn errors_are_those_of_the_system() {
        let folder = TempDir::new();
        let path = folder.write("f", b"0123456789");
        let file = File::create(&path).unwrap();
        assert_eq!(
            read_at(&file, 0, &mut [0; 4]).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }
}
