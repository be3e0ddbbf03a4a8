//! Keys one by one and without an echo, as each system gives them.
//!
//! Whoever waits for keys can be woken, so that one thread hears of keys and of answers.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use self::unix::{Keys, Mode, Waker};
#[cfg(windows)]
pub(crate) use self::windows::{Keys, Mode, Waker};

/// Whether Ctrl-C is a signal or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    On,
    Off,
}

/// What came of waiting.
#[derive(Debug)]
pub(crate) enum Found {
    /// In the sequences of Unix terminals.
    Bytes(Vec<u8>),
    /// The terminal is gone.
    HungUp,
    Nothing,
}
