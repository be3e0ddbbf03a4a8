//! Keys from a Unix terminal.
//!
//! A pair of sockets wakes the waiting thread. **Invariant:** bytes are taken from the system only
//! by a wait.

use std::io::{Read as _, Write as _, stdin};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

use crate::commands::chat::keys::{KeyInput, Signals};

/// Upper bound on the bytes taken at once.
const N_BYTES_MAX: usize = 1024;

/// A terminal that does not echo.
#[derive(Debug)]
pub(crate) struct KeyReader {
    original: TerminalMode,
    woken: UnixStream,
    waker: KeyWaker,
}

/// The settings of a terminal.
#[derive(Clone, Debug)]
pub(crate) struct TerminalMode(Termios);

/// Wakes the thread that waits for keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyWaker(Arc<UnixStream>);

impl KeyReader {
    /// Returns `None` if the terminal cannot be configured.
    pub(crate) fn open() -> Option<Self> {
        let (woken, waker) = UnixStream::pair().ok()?;
        // One pending byte is enough to wake the thread, so writes need not block.
        woken.set_nonblocking(true).ok()?;
        waker.set_nonblocking(true).ok()?;
        let original = TerminalMode(tcgetattr(stdin()).ok()?);
        let keys = Self { original, woken, waker: KeyWaker(Arc::new(waker)) };
        keys.set(Signals::On).ok()?;
        Some(keys)
    }

    /// Turns off echo and line buffering.
    pub(crate) fn set(&self, signals: Signals) -> Result<(), Errno> {
        let mut silent = self.original.0.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::IEXTEN);
        silent.local_modes.set(LocalModes::ISIG, signals == Signals::On);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin(), OptionalActions::Now, &silent)
    }

    pub(crate) fn waker(&self) -> KeyWaker {
        self.waker.clone()
    }

    pub(crate) fn mode(&self) -> TerminalMode {
        self.original.clone()
    }

    /// Waits up to `time` for keys or a wake-up.
    pub(crate) fn wait(&self, time: Duration) -> KeyInput {
        let stdin = stdin();
        let mut ready =
            [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
        let time = Timespec::try_from(time).unwrap_or_default();
        if poll(&mut ready, Some(&time)).is_err() {
            return KeyInput::Nothing;
        }
        let [typed, woken] = ready.map(|it| it.revents());
        if !woken.is_empty() {
            // The content of the bytes is irrelevant.
            drop((&self.woken).read(&mut [0; N_BYTES_MAX]));
        }
        // Reading without readiness would block forever.
        if !typed.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return KeyInput::Nothing;
        }
        let mut bytes = vec![0; N_BYTES_MAX];
        match read(&stdin, &mut bytes) {
            Ok(0) => KeyInput::HungUp,
            Ok(n_bytes) => {
                bytes.truncate(n_bytes);
                KeyInput::Bytes(bytes)
            }
            Err(Errno::INTR | Errno::AGAIN) => KeyInput::Nothing,
            Err(_) => KeyInput::HungUp,
        }
    }
}

impl KeyWaker {
    pub(crate) fn wake(&self) {
        // If the buffer is full, a wake-up is already pending.
        drop((&*self.0).write(&[0]));
    }
}

impl TerminalMode {
    /// Restores the original settings.
    pub(crate) fn restore(&self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}
