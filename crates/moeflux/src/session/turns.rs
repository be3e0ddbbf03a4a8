//! A fair lock: turns are taken in order of arrival.
//!
//! **Invariant:** one turn at a time, in order of arrival. So a long prompt of one session delays
//! another's token by one step, not by the whole prompt.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// A gate that threads pass one at a time.
#[derive(Debug, Default)]
pub(super) struct Turnstile {
    tickets: Mutex<Tickets>,
    turned: Condvar,
}

/// Tickets, handed out in order.
#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    serving: u64,
    holder: Option<ThreadId>,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turnstile>);

impl Turnstile {
    /// Waits for a turn.
    pub(super) fn enter(self: &Arc<Self>) -> Turn {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = tickets.next;
        tickets.next += 1;
        while tickets.serving != ticket {
            tickets = self.turned.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        tickets.holder = Some(thread::current().id());
        Turn(Arc::clone(self))
    }

    /// Waits for a turn; returns `None` if this thread already has one and would wait for itself.
    pub(super) fn enter_once(self: &Arc<Self>) -> Option<Turn> {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let is_mine = tickets.holder == Some(thread::current().id());
        drop(tickets);
        (!is_mine).then(|| self.enter())
    }
}

impl Turn {
    /// Makes this thread the holder of the turn, whichever thread had it before.
    pub(super) fn take_over(&self) {
        let mut tickets = self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.holder = Some(thread::current().id());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut tickets = self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.holder = None;
        tickets.serving += 1;
        self.0.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let turnstile = Arc::<Turnstile>::default();
        let turn = turnstile.enter_once().unwrap();
        assert!(turnstile.enter_once().is_none());
        drop(turn);
        assert!(turnstile.enter_once().is_some());
    }

    #[test]
    fn a_turn_moves_between_threads() {
        let turnstile = Arc::<Turnstile>::default();
        let turn = turnstile.enter_once().unwrap();
        thread::scope(|scope| {
            let moved = scope.spawn(|| {
                turn.take_over();
                turnstile.enter_once().is_none()
            });
            assert!(moved.join().unwrap());
        });
    }

    #[test]
    fn turns_follow_each_other() {
        let turnstile = Arc::<Turnstile>::default();
        let count = Mutex::new(0);
        let pass = || {
            for _ in 0..100 {
                let _turn = turnstile.enter();
                *count.try_lock().expect("one at a time") += 1;
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(pass))));
        assert_eq!(count.into_inner().unwrap(), 400);
    }
}
