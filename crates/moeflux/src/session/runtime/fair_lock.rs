//! A fair lock: threads get it in order of arrival.
//!
//! **Invariant:** one holder at a time, in order of arrival. So a long prompt of one session delays
//! another's token by one step, not by the whole prompt.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// A lock that threads get in order of arrival.
#[derive(Debug, Default)]
pub(in crate::session) struct FairLock {
    tickets: Mutex<Tickets>,
    released: Condvar,
}

/// Tickets, handed out in order.
#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    serving: u64,
    holder: Option<ThreadId>,
}

/// The locked state of a [`FairLock`], which ends when it is dropped.
#[derive(Debug)]
pub(in crate::session) struct FairLockGuard(Arc<FairLock>);

impl FairLock {
    /// Waits for the lock.
    pub(in crate::session) fn lock(self: &Arc<Self>) -> FairLockGuard {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = tickets.next;
        tickets.next += 1;
        while tickets.serving != ticket {
            tickets = self.released.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        tickets.holder = Some(thread::current().id());
        FairLockGuard(Arc::clone(self))
    }

    /// Waits for the lock; returns `None` if this thread holds it and would wait for itself.
    pub(in crate::session) fn lock_unless_held(self: &Arc<Self>) -> Option<FairLockGuard> {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let is_mine = tickets.holder == Some(thread::current().id());
        drop(tickets);
        (!is_mine).then(|| self.lock())
    }
}

impl FairLockGuard {
    /// Makes this thread the holder of the lock, whichever thread held it before.
    pub(in crate::session) fn take_over(&self) {
        let mut tickets = self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.holder = Some(thread::current().id());
    }
}

impl Drop for FairLockGuard {
    fn drop(&mut self) {
        let mut tickets = self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.holder = None;
        tickets.serving += 1;
        self.0.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let lock = Arc::<FairLock>::default();
        let guard = lock.lock_unless_held().unwrap();
        assert!(lock.lock_unless_held().is_none());
        drop(guard);
        assert!(lock.lock_unless_held().is_some());
    }

    #[test]
    fn a_guard_moves_between_threads() {
        let lock = Arc::<FairLock>::default();
        let guard = lock.lock_unless_held().unwrap();
        thread::scope(|scope| {
            let moved = scope.spawn(|| {
                guard.take_over();
                lock.lock_unless_held().is_none()
            });
            assert!(moved.join().unwrap());
        });
    }

    #[test]
    fn holders_follow_each_other() {
        let lock = Arc::<FairLock>::default();
        let count = Mutex::new(0);
        let pass = || {
            for _ in 0..100 {
                let _guard = lock.lock();
                *count.try_lock().expect("one at a time") += 1;
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(pass))));
        assert_eq!(count.into_inner().unwrap(), 400);
    }
}
