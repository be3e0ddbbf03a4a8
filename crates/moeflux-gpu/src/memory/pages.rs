//! Tracks which pages of an arena are in use, and by how many sessions.
//!
//! **Invariant:** a page has users or is free, never both, and is booked as long as it has users.
//! The lowest free page is taken first, so that unused pages gather at an arena's end. This module
//! knows no device.

use std::collections::BTreeSet;

use moeflux::provider::backend::room::Booking;

/// The pages of an arena.
#[derive(Debug, Default)]
pub(crate) struct PageAllocator {
    used: Vec<Option<PageUse>>,
    free: BTreeSet<usize>,
}

/// A page in use.
#[derive(Debug)]
struct PageUse {
    n_users: usize,
    _booking: Booking,
}

impl PageAllocator {
    /// Returns the number of pages.
    pub(crate) const fn len(&self) -> usize {
        self.used.len()
    }

    /// Returns the number of free pages.
    pub(crate) fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Returns the index after the last page in use.
    pub(crate) fn end(&self) -> usize {
        self.used.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
    }

    /// Sets the number of pages. Removed pages must have no user.
    pub(crate) fn resize(&mut self, n: usize) {
        assert!(n >= self.end(), "pieces in use stay");
        self.free.extend(self.used.len()..n);
        self.free.split_off(&n);
        self.used.resize_with(n, || None);
    }

    /// Takes the lowest free page for its first user.
    pub(crate) fn take(&mut self, booking: Booking) -> usize {
        let page = self.free.pop_first().expect("there is a free piece for each that is taken");
        self.used[page] = Some(PageUse { n_users: 1, _booking: booking });
        page
    }

    /// Adds a user to a page.
    pub(crate) fn share(&mut self, page: usize) {
        self.used_mut(page).n_users += 1;
    }

    /// Returns whether a page has more than one user.
    pub(crate) fn is_shared(&self, page: usize) -> bool {
        self.used[page].as_ref().is_some_and(|used| used.n_users > 1)
    }

    /// Removes a user from a page.
    pub(crate) fn give_back(&mut self, page: usize) {
        let used = self.used_mut(page);
        used.n_users -= 1;
        if used.n_users == 0 {
            self.used[page] = None;
            self.free.insert(page);
        }
    }

    fn used_mut(&mut self, page: usize) -> &mut PageUse {
        self.used[page].as_mut().expect("a piece that is named has a user")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moeflux::provider::backend::room::SessionBudget;

    use super::*;

    #[test]
    fn a_page_is_free_again_when_its_last_user_is_gone() {
        let budget = Arc::<SessionBudget>::default();
        let book = || budget.book(7, &String::new).unwrap();
        let mut pages = PageAllocator::default();
        pages.resize(3);
        assert_eq!([pages.take(book()), pages.take(book())], [0, 1]);
        pages.share(0);
        assert!(pages.is_shared(0) && !pages.is_shared(1));
        pages.give_back(0);
        assert_eq!((budget.booked_bytes(), pages.n_free(), pages.end()), (14, 1, 2));
        pages.give_back(0);
        assert_eq!((budget.booked_bytes(), pages.n_free(), pages.end()), (7, 2, 2));
        assert_eq!(pages.take(book()), 0, "the lowest goes first");
        pages.give_back(1);
        pages.resize(1);
        assert_eq!((pages.len(), pages.n_free(), pages.end()), (1, 0, 1));
        pages.resize(4);
        assert_eq!(pages.take(book()), 1);
    }
}
