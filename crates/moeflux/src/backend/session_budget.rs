//! The memory budget of sessions.
//!
//! **Invariant:** at the time of each booking, all bookings together are within the limit. Dropping
//! a [`Booking`] frees its bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Remedy, Result};

/// The memory budget of sessions. Unlimited until a limit is set.
#[derive(Debug, Default)]
pub struct SessionBudget {
    state: Mutex<BudgetState>,
}

/// The limit and the bytes booked.
#[derive(Clone, Copy, Debug, Default)]
struct BudgetState {
    limit_bytes: Option<u64>,
    booked_bytes: u64,
}

/// Bytes booked by a session.
#[derive(Debug)]
pub struct Booking {
    budget: Arc<SessionBudget>,
    n_bytes: u64,
}

impl SessionBudget {
    /// Books `n_bytes` for `what`.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if less is left.
    pub fn book(self: &Arc<Self>, n_bytes: u64, what: &dyn Fn() -> String) -> Result<Booking> {
        self.check(n_bytes, what)?;
        self.state().booked_bytes += n_bytes;
        Ok(Booking { budget: Arc::clone(self), n_bytes })
    }

    /// Checks whether `n_bytes` could be booked for `what`.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if less is left.
    pub fn check(&self, n_bytes: u64, what: &dyn Fn() -> String) -> Result<()> {
        match self.left_bytes() {
            Some(left_bytes) if left_bytes < n_bytes => {
                Err(Error::no_room_in(left_bytes, what(), n_bytes, Remedy::FewerSessions))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes that can still be booked; `None` if unlimited.
    #[must_use]
    pub fn left_bytes(&self) -> Option<u64> {
        let BudgetState { limit_bytes, booked_bytes } = *self.state();
        limit_bytes.map(|limit_bytes| limit_bytes.saturating_sub(booked_bytes))
    }

    /// Returns the bytes that can be booked in total; `None` if unlimited.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<u64> {
        self.state().limit_bytes
    }

    /// Returns the bytes booked.
    #[must_use]
    pub fn booked_bytes(&self) -> u64 {
        self.state().booked_bytes
    }

    /// Sets the total limit of sessions. Existing bookings are kept.
    pub fn set_limit(&self, limit_bytes: Option<u64>) {
        self.state().limit_bytes = limit_bytes;
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.budget.state().booked_bytes -= self.n_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bookings_free_their_bytes() {
        let budget = Arc::<SessionBudget>::default();
        let book = |n_bytes| budget.book(n_bytes, &|| "a session".to_owned());
        let first = book(1 << 60).unwrap();
        assert_eq!(budget.left_bytes(), None);
        drop(first);
        budget.set_limit(Some(100));
        let (first, second) = (book(60).unwrap(), book(40).unwrap());
        assert_eq!(budget.left_bytes(), Some(0));
        let error = book(1).unwrap_err();
        assert!(matches!(error, Error::NoRoom { needed_bytes: 1, .. }), "{error}");
        drop(first);
        assert!(error.to_string().contains("0 bytes are available"), "{error}");
        let error = book(61).unwrap_err().to_string();
        assert!(
            error.starts_with("a session: needs 61 bytes; 60 bytes are available; end other"),
            "{error}"
        );
        drop((book(60).unwrap(), second));
        assert_eq!(budget.booked_bytes(), 0);
    }

    #[test]
    fn a_smaller_limit_takes_nothing_away() {
        let budget = Arc::<SessionBudget>::default();
        let booking = budget.book(10, &String::new).unwrap();
        budget.set_limit(Some(3));
        assert_eq!((budget.left_bytes(), budget.booked_bytes()), (Some(0), 10));
        drop(booking);
        assert_eq!(budget.left_bytes(), Some(3));
    }
}
