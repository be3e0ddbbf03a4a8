//! Signals that end a process by default although they are not meant to end a server.
//!
//! Tools send them to many processes at once to reopen logs, print states or measure times, and a
//! parent's timers may be left over. They are blocked rather than ignored: the thread's mask can be
//! set by a safe function, and threads and libraries that start later inherit it. **Invariant:**
//! signals that request termination, and those of faults, keep their effect.

#[cfg(unix)]
use nix::sys::signal::{SigSet, Signal};

/// Signals that do not end a server.
#[cfg(unix)]
const NONTERMINATING: [Signal; 6] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
];

/// Blocks these signals from now on. It must be called before any thread is started, since running
/// threads are not affected.
pub(crate) fn block_nonterminating() {
    #[cfg(unix)]
    {
        let mut set = SigSet::empty();
        NONTERMINATING.iter().for_each(|it| set.add(*it));
        // If the system does not allow that, the signals end the process as by default.
        let _blocked = set.thread_block();
    }
}
