//! Tracks which pieces of an arena are in use, and by how many sessions.
//!
//! **Invariant:** a piece has users or is free, never both, and is booked as long as it has users.
//! The lowest free piece is taken first, so that unused pieces gather at an arena's end. Knows no
//! device.

use std::collections::BTreeSet;

use moeflux::provider::backend::room::Booking;

/// The pieces of an arena.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    used: Vec<Option<Used>>,
    free: BTreeSet<usize>,
}

/// A piece in use.
#[derive(Debug)]
struct Used {
    n_users: usize,
    _booking: Booking,
}

impl Pieces {
    /// Returns the number of pieces.
    pub(crate) const fn len(&self) -> usize {
        self.used.len()
    }

    /// Returns the number of free pieces.
    pub(crate) fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Returns the index after the last piece in use.
    pub(crate) fn end(&self) -> usize {
        self.used.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
    }

    /// Sets the number of pieces. Removed pieces must have no user.
    pub(crate) fn resize(&mut self, n: usize) {
        assert!(n >= self.end(), "pieces in use stay");
        self.free.extend(self.used.len()..n);
        self.free.split_off(&n);
        self.used.resize_with(n, || None);
    }

    /// Takes the lowest free piece for its first user.
    pub(crate) fn take(&mut self, booking: Booking) -> usize {
        let piece = self.free.pop_first().expect("there is a free piece for each that is taken");
        self.used[piece] = Some(Used { n_users: 1, _booking: booking });
        piece
    }

    /// Adds a user to a piece.
    pub(crate) fn share(&mut self, piece: usize) {
        self.used_mut(piece).n_users += 1;
    }

    /// Returns whether a piece has more than one user.
    pub(crate) fn is_shared(&self, piece: usize) -> bool {
        self.used[piece].as_ref().is_some_and(|used| used.n_users > 1)
    }

    /// Removes a user from a piece.
    pub(crate) fn give_back(&mut self, piece: usize) {
        let used = self.used_mut(piece);
        used.n_users -= 1;
        if used.n_users == 0 {
            self.used[piece] = None;
            self.free.insert(piece);
        }
    }

    fn used_mut(&mut self, piece: usize) -> &mut Used {
        self.used[piece].as_mut().expect("a piece that is named has a user")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moeflux::provider::backend::room::Room;

    use super::*;

    #[test]
    fn a_piece_is_free_again_when_its_last_user_is_gone() {
        let room = Arc::<Room>::default();
        let book = || room.book(7, &String::new).unwrap();
        let mut pieces = Pieces::default();
        pieces.resize(3);
        assert_eq!([pieces.take(book()), pieces.take(book())], [0, 1]);
        pieces.share(0);
        assert!(pieces.is_shared(0) && !pieces.is_shared(1));
        pieces.give_back(0);
        assert_eq!((room.booked_bytes(), pieces.n_free(), pieces.end()), (14, 1, 2));
        pieces.give_back(0);
        assert_eq!((room.booked_bytes(), pieces.n_free(), pieces.end()), (7, 2, 2));
        assert_eq!(pieces.take(book()), 0, "the lowest goes first");
        pieces.give_back(1);
        pieces.resize(1);
        assert_eq!((pieces.len(), pieces.n_free(), pieces.end()), (1, 0, 1));
        pieces.resize(4);
        assert_eq!(pieces.take(book()), 1);
    }
}
