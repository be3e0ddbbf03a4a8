//! Suppresses a message of GPU drivers that does not concern the GPU.
//!
//! Mesa's Vulkan drivers look for a Wayland session when loaded, and libwayland writes to stderr if
//! there is none. **Invariant:** every other line is printed after the work.

/// Part of libwayland's message.
#[cfg(target_os = "linux")]
const NOISE: &str = "XDG_RUNTIME_DIR";

/// Runs work that loads drivers.
#[cfg(not(target_os = "linux"))]
pub(crate) fn without_noise<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Runs work that loads drivers.
#[cfg(target_os = "linux")]
pub(crate) fn without_noise<T>(work: impl FnOnce() -> T) -> T {
    let capture = StderrCapture::begin();
    let result = work();
    drop(capture);
    result
}

/// Redirects stderr to memory.
#[cfg(target_os = "linux")]
struct StderrCapture {
    stderr: std::os::fd::OwnedFd,
    written: std::fs::File,
}

#[cfg(target_os = "linux")]
impl StderrCapture {
    /// Returns `None` if the system has no such memory: then lines are printed as usual.
    fn begin() -> Option<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let written = rustix::fs::memfd_create("moeflux-stderr", flags).ok()?;
        let stderr = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).ok()?;
        rustix::stdio::dup2_stderr(&written).ok()?;
        Some(Self { stderr, written: written.into() })
    }
}

#[cfg(target_os = "linux")]
impl Drop for StderrCapture {
    fn drop(&mut self) {
        use std::io::{Read as _, Seek as _};

        let mut text = Vec::new();
        if rustix::stdio::dup2_stderr(&self.stderr).is_err()
            || self.written.rewind().is_err()
            || self.written.read_to_end(&mut text).is_err()
        {
            return;
        }
        let text = String::from_utf8_lossy(&text);
        for line in text.lines().filter(|line| !line.contains(NOISE)) {
            crate::output::print::stderr_line(line);
        }
    }
}
