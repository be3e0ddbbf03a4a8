//! The places in a long prompt up to which it is saved on a drive before the rest is read.
//!
//! **Invariant:** pure. At most one place is due, so that at most one takes the memory of a
//! checkpoint.

/// The places of one prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaveMarks {
    /// Their distance; `None` if the prompt is not saved.
    every: Option<usize>,
    /// The last one, or where reading began.
    last: usize,
    /// Whether the last one is still to be saved.
    is_due: bool,
}

impl SaveMarks {
    pub(super) fn new(every: Option<usize>, begin: usize) -> Self {
        Self { every, last: begin, is_due: false }
    }

    /// Returns the place that is still to be saved, perhaps a new one, when a step reads up to
    /// `end`.
    pub(super) fn advance(&mut self, end: usize) -> Option<usize> {
        if let (Some(every), false) = (self.every, self.is_due) {
            let mark = end / every * every;
            if mark >= self.last.saturating_add(every) {
                (self.last, self.is_due) = (mark, true);
            }
        }
        self.due()
    }

    /// Returns the place that is still to be saved.
    pub(super) fn due(self) -> Option<usize> {
        self.is_due.then_some(self.last)
    }

    /// Records that the place was saved, or will not be.
    pub(super) fn set_saved(&mut self) {
        self.is_due = false;
    }

    /// Has no further places. Returns whether there could have been one.
    pub(super) fn end(&mut self) -> bool {
        self.is_due = false;
        self.every.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_multiples_and_come_one_at_a_time() {
        let mut marks = SaveMarks::new(Some(100), 130);
        assert_eq!(marks.advance(200), None, "too near to what was there");
        assert_eq!(marks.advance(330), Some(300));
        assert_eq!(marks.advance(500), Some(300), "it is still to be saved");
        marks.set_saved();
        assert_eq!((marks.due(), marks.advance(390)), (None, None));
        assert_eq!(marks.advance(620), Some(600));
        assert!(marks.end() && !marks.end());
        assert_eq!((marks.due(), marks.advance(9_000)), (None, None));
        let mut never = SaveMarks::new(Some(usize::MAX), 5);
        assert_eq!(never.advance(9_000), None);
        assert!(!SaveMarks::new(None, 0).end());
    }
}
