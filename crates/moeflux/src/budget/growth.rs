//! How many slots sessions may borrow when they outgrow the memory reserved for them.
//!
//! **Invariant:** pure; sessions never get more bytes than the slots give up.

/// Memory to divide between sessions and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthRoom {
    /// Bytes of sessions while they borrow nothing.
    pub session_bytes: u64,
    /// Number of slots while nothing is borrowed.
    pub n_slots: usize,
    /// Distance from one slot to the next.
    pub slot_bytes: u64,
    /// Slots whose memory is allocated and freed together.
    pub n_slots_at_once: usize,
    /// Minimum number of slots.
    pub n_slots_least: usize,
}

/// Memory that the sessions of an engine share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionRoom {
    /// Bytes in use by sessions.
    pub booked_bytes: u64,
    /// Upper bound on bytes of sessions, including all that experts can lend them; `None` if no
    /// limit is known.
    pub limit_bytes: Option<u64>,
    /// Slots for experts that sessions have borrowed.
    pub n_slots_lent: usize,
}

impl GrowthRoom {
    /// Returns the slots that must be lent so that sessions can have `session_bytes` in all; `None`
    /// if too few would be left.
    #[must_use]
    pub fn n_slots_lent(&self, session_bytes: u64) -> Option<usize> {
        let more_bytes = session_bytes.saturating_sub(self.session_bytes);
        if more_bytes == 0 {
            return Some(0);
        }
        let n_lent = usize::try_from(more_bytes.div_ceil(self.slot_bytes)).ok()?;
        // Round down to a whole slab, so that the memory beyond it is freed.
        let n_left = self.n_slots.checked_sub(n_lent)?;
        let n_left = n_left / self.n_slots_at_once * self.n_slots_at_once;
        (n_left >= self.n_slots_least).then_some(self.n_slots - n_left)
    }

    /// Returns the bytes that sessions can have in all while as many slots as possible are lent.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.bytes(self.n_slots.saturating_sub(self.n_slots_least))
    }

    /// Returns the bytes that sessions can have in all while `n_slots_lent` slots are lent.
    #[must_use]
    pub fn bytes(&self, n_slots_lent: usize) -> u64 {
        self.session_bytes + n_slots_lent as u64 * self.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: GrowthRoom = GrowthRoom {
        session_bytes: 1000,
        n_slots: 60,
        slot_bytes: 100,
        n_slots_at_once: 8,
        n_slots_least: 10,
    };

    #[test]
    fn slots_go_in_pieces_and_the_least_stay() {
        for (session_bytes, expected) in [
            (0, Some(0)),
            (1000, Some(0)),
            // 59 are left, but only 56 end a slab.
            (1001, Some(4)),
            (1400, Some(4)),
            (1401, Some(12)),
            // 16 of the 60 stay; 8 would be below the minimum.
            (5400, Some(44)),
            (5401, None),
            (u64::MAX, None),
        ] {
            assert_eq!(ROOM.n_slots_lent(session_bytes), expected, "{session_bytes}");
            let lent = expected.map(|n_slots| ROOM.bytes(n_slots));
            assert!(lent.is_none_or(|lent| lent >= session_bytes), "{session_bytes}");
        }
    }
}
