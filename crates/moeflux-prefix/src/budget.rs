//! Bytes written on one day, so that a cache does not wear out a drive.
//!
//! **Invariant:** a clock that goes back counts as the same day; the days after it count again.

use std::time::Duration;

const DAY_SECONDS: u64 = 86_400;

/// What was written on the latest day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DayBudget {
    day: u64,
    n_bytes: u64,
}

impl DayBudget {
    /// Reads the file; a damaged one counts as none.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let numbers = std::str::from_utf8(bytes).ok().and_then(|text| {
            let (day, n_bytes) = text.strip_suffix('\n')?.split_once(' ')?;
            Some(Self { day: day.parse().ok()?, n_bytes: n_bytes.parse().ok()? })
        });
        numbers.unwrap_or_default()
    }

    /// Returns the contents of the file.
    pub(crate) fn to_text(self) -> String {
        format!("{} {}\n", self.day, self.n_bytes)
    }

    /// Returns the budget as it is at this time.
    pub(crate) fn at(self, now: Duration) -> Self {
        let day = now.as_secs() / DAY_SECONDS;
        // A clock that was ahead by years must not stop all writes until then.
        let n_bytes = if day > self.day { 0 } else { self.n_bytes };
        Self { day, n_bytes }
    }

    /// Returns what was written on its day.
    pub(crate) fn written_bytes(self) -> u64 {
        self.n_bytes
    }

    /// Adds bytes that are going to be written.
    pub(crate) fn plus(self, n_bytes: u64) -> Self {
        Self { n_bytes: self.n_bytes.saturating_add(n_bytes), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_begins_with_nothing_and_a_clock_may_jump() {
        let day = |it: u64| Duration::from_secs(it * DAY_SECONDS + 5);
        let first = DayBudget::default().at(day(100)).plus(7);
        assert_eq!(first.at(day(100)).written_bytes(), 7);
        assert_eq!(first.at(day(101)).written_bytes(), 0);
        let back = first.at(day(90));
        assert_eq!(back.written_bytes(), 7);
        assert_eq!(back.at(day(91)).written_bytes(), 0);
        assert_eq!(first.plus(u64::MAX).written_bytes(), u64::MAX);
    }

    #[test]
    fn the_file_is_read_as_it_was_written_and_damage_counts_as_nothing() {
        let budget = DayBudget { day: 20_785, n_bytes: 123 };
        assert_eq!(DayBudget::parse(budget.to_text().as_bytes()), budget);
        for damaged in ["", "1", "1 2", "1 x\n", "-1 2\n", "1 2 3\n", "99999999999999999999 1\n"] {
            assert_eq!(DayBudget::parse(damaged.as_bytes()), DayBudget::default(), "{damaged:?}");
        }
        assert_eq!(DayBudget::parse(&[0xff]), DayBudget::default());
    }
}
