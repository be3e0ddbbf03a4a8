//! Memory that sessions may have, and how much of it they have.
//!
//! **Invariant:** bookings never come to more than the limit that there was when they were made,
//! and what was booked is free again when its [`Booking`] is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Remedy, Result};

/// Memory that sessions may have. Without a limit until one is set.
#[derive(Debug, Default)]
pub struct Room {
    account: Mutex<Account>,
}

/// What may be booked, and what is.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    limit_bytes: Option<u64>,
    booked_bytes: u64,
}

/// Memory that a session has.
#[derive(Debug)]
pub struct Booking {
    room: Arc<Room>,
    n_bytes: u64,
}

impl Room {
    /// Books this much for `what`.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if less is left.
    pub fn book(self: &Arc<Self>, n_bytes: u64, what: &dyn Fn() -> String) -> Result<Booking> {
        self.check(n_bytes, what)?;
        self.account().booked_bytes += n_bytes;
        Ok(Booking { room: Arc::clone(self), n_bytes })
    }

    /// Whether this much could be booked for `what`.
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

    /// What can still be booked; `None` without a limit.
    #[must_use]
    pub fn left_bytes(&self) -> Option<u64> {
        let Account { limit_bytes, booked_bytes } = *self.account();
        limit_bytes.map(|limit_bytes| limit_bytes.saturating_sub(booked_bytes))
    }

    /// What can be booked in all; `None` without a limit.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<u64> {
        self.account().limit_bytes
    }

    /// What is booked.
    #[must_use]
    pub fn booked_bytes(&self) -> u64 {
        self.account().booked_bytes
    }

    /// Lets sessions have this much in all. What is booked stays booked.
    pub fn set_limit(&self, limit_bytes: Option<u64>) {
        self.account().limit_bytes = limit_bytes;
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.room.account().booked_bytes -= self.n_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_booked_again() {
        let room = Arc::<Room>::default();
        let book = |n_bytes| room.book(n_bytes, &|| "a session".to_owned());
        let first = book(1 << 60).unwrap();
        assert_eq!(room.left_bytes(), None);
        drop(first);
        room.set_limit(Some(100));
        let (first, second) = (book(60).unwrap(), book(40).unwrap());
        assert_eq!(room.left_bytes(), Some(0));
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
        assert_eq!(room.booked_bytes(), 0);
    }

    #[test]
    fn a_smaller_limit_takes_nothing_away() {
        let room = Arc::<Room>::default();
        let booking = room.book(10, &String::new).unwrap();
        room.set_limit(Some(3));
        assert_eq!((room.left_bytes(), room.booked_bytes()), (Some(0), 10));
        drop(booking);
        assert_eq!(room.left_bytes(), Some(3));
    }
}
