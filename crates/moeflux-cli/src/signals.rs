//! Signals that end a process unless it says otherwise, and that nobody sends to end a server.
//!
//! Tools send them to many processes at once to have logs opened again, states printed or times
//! measured, and timers of a parent may be left over. They are blocked and not ignored: the
//! thread's mask is set by a safe function, and threads and libraries that begin later have it,
//! too. **Invariant:** signals that ask for the end, and those of faults, stay as they are.

#[cfg(unix)]
use nix::sys::signal::{SigSet, Signal};

/// What does not end a server.
#[cfg(unix)]
const OUTLIVED: [Signal; 6] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
];

/// Outlives these signals from now on. Threads that run already do not: it is called before any.
pub(crate) fn outlive() {
    #[cfg(unix)]
    {
        let mut set = SigSet::empty();
        OUTLIVED.iter().for_each(|it| set.add(*it));
        // Where the system does not let a thread do that, the signals end it as ever.
        let _blocked = set.thread_block();
    }
}
