//! Decides when the oldest prompt runs ahead of shorter ones.
//!
//! **Invariant:** pure. While a prompt is the oldest, the prompts that overtake it get at most as
//! much engine time as it gets itself, plus one step. It is therefore read within twice the time
//! that it takes alone, plus one step.

use std::time::Duration;

use crate::prefill::PrefillId;

/// The oldest prompt, and how far others are ahead of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Precedence {
    oldest: Option<PrefillId>,
    /// Engine time of others since it became the oldest, less its own since it began.
    ahead_ns: i128,
}

impl Precedence {
    /// Sets the oldest prompt and the engine time that it has used.
    pub(crate) fn set_oldest(&mut self, oldest: Option<(PrefillId, Duration)>) {
        let (id, spent) = oldest.map_or((None, Duration::ZERO), |(id, spent)| (Some(id), spent));
        if self.oldest != id {
            *self = Self { oldest: id, ahead_ns: -ns(spent) };
        }
    }

    /// Records engine time spent on these prompts.
    pub(crate) fn add(&mut self, ids: impl IntoIterator<Item = PrefillId>, spent: Duration) {
        let is_its_own = ids.into_iter().any(|id| Some(id) == self.oldest);
        self.ahead_ns += if is_its_own { -ns(spent) } else { ns(spent) };
    }

    /// Returns the oldest prompt if others have had their share before it.
    pub(crate) fn due(&self) -> Option<PrefillId> {
        self.oldest.filter(|_| self.ahead_ns > 0)
    }
}

fn ns(time: Duration) -> i128 {
    time.as_nanos().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracked::JobId;

    const fn id(job: u64) -> PrefillId {
        (JobId(job), None)
    }

    #[test]
    fn others_have_as_much_time_as_the_oldest() {
        let mut precedence = Precedence::default();
        let second = Duration::from_secs(1);
        assert_eq!(precedence.due(), None);
        precedence.set_oldest(Some((id(3), 2 * second)));
        precedence.add([id(4)], 2 * second);
        assert_eq!(precedence.due(), None, "it had as much");
        precedence.add([id(5), id(4)], second);
        assert_eq!(precedence.due(), Some(id(3)));
        precedence.set_oldest(Some((id(3), 9 * second)));
        assert_eq!(precedence.due(), Some(id(3)), "it is the same");
        precedence.add([id(4), id(3)], second);
        assert_eq!(precedence.due(), None);
        precedence.set_oldest(Some((id(4), Duration::ZERO)));
        precedence.add([id(5)], Duration::from_nanos(1));
        assert_eq!(precedence.due(), Some(id(4)));
        precedence.set_oldest(None);
        precedence.add([id(5)], second);
        assert_eq!(precedence.due(), None);
    }
}
