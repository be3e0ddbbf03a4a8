//! Unbuffered keys without echo, on each system.
//!
//! A wait for keys can be interrupted by a waker, so that one thread handles both keys and answers.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use self::unix::{KeyReader, KeyWaker, TerminalMode};
#[cfg(windows)]
pub(crate) use self::windows::{KeyReader, KeyWaker, TerminalMode};

/// Whether Ctrl-C is a signal or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    On,
    Off,
}

/// The result of a wait.
#[derive(Debug)]
pub(crate) enum KeyInput {
    /// Bytes as Unix terminals send them.
    Bytes(Vec<u8>),
    /// The terminal is gone.
    HungUp,
    Nothing,
}
