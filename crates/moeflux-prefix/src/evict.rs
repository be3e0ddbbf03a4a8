//! Which object leaves first: of those on which no other depends, the one of least worth.
//!
//! **Invariant:** pure. Worth has the form that it has for sessions in memory: the time that an
//! object saves per byte, the less the more others were used after it. No clock counts.

use crate::index::{ObjectEntry, ObjectIndex};
use crate::key::{ObjectId, OwnerId};

/// The circumstances of a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomNeed {
    /// The bound, of which each owner has an equal share.
    pub(crate) n_bytes_max: u64,
    /// The number of the latest use.
    pub(crate) last_use: u64,
    /// Who needs room, and how much.
    pub(crate) incoming: Option<(OwnerId, u64)>,
}

/// Returns the object that leaves next. Owners with more than their share go first.
pub(crate) fn next_victim(index: &ObjectIndex, need: RoomNeed) -> Option<ObjectId> {
    let mut owners = index.bytes_by_owner();
    if let Some((owner, n_bytes)) = need.incoming {
        *owners.entry(owner).or_default() += n_bytes;
    }
    let share_bytes = need.n_bytes_max / owners.len().max(1) as u64;
    let rank = |entry: &ObjectEntry| {
        let is_within = owners[&entry.namespace.owner()] <= share_bytes;
        (is_within, worth(entry, need.last_use))
    };
    let leaves = index.leaves().map(|(id, entry)| (id, rank(entry), entry.last_use));
    let least = leaves.min_by(|(a_id, (a_in, a_worth), a_use), (b_id, (b_in, b_worth), b_use)| {
        let by_worth = a_in.cmp(b_in).then(a_worth.total_cmp(b_worth));
        by_worth.then(a_use.cmp(b_use)).then(a_id.cmp(b_id))
    });
    least.map(|(id, ..)| *id)
}

/// Returns the milliseconds that a byte is expected to save.
fn worth(entry: &ObjectEntry, last_use: u64) -> f64 {
    let n_used_since = last_use.saturating_sub(entry.last_use);
    as_f64(entry.saved_ms)
        / as_f64(n_used_since.saturating_add(1))
        / as_f64(entry.file_bytes.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::{ObjectKind, PlaceHasher, PrefixNamespace};

    /// What is drawn of an object: its text, where it starts, and its worth.
    struct Case {
        owner: u8,
        text: &'static [u32],
        first: usize,
        saved_ms: u64,
        file_bytes: u64,
        last_use: u64,
    }

    fn id_of(case: &Case) -> (ObjectId, ObjectEntry) {
        let namespace = PrefixNamespace::new(b"", OwnerId([case.owner; 16]));
        let mut hasher = PlaceHasher::new(namespace);
        hasher.add(&case.text[..case.first]);
        let start = hasher.key();
        hasher.add(&case.text[case.first..]);
        let kind = match case.first == case.text.len() {
            true => ObjectKind::State,
            false => ObjectKind::Segment,
        };
        let entry = ObjectEntry {
            namespace,
            first: case.first as u64,
            end: case.text.len() as u64,
            file_bytes: case.file_bytes,
            saved_ms: case.saved_ms,
            modified: Duration::ZERO,
            last_use: case.last_use,
        };
        (ObjectId { end: hasher.key(), start, kind }, entry)
    }

    /// Checks in which order all objects leave.
    #[track_caller]
    fn check(cases: &[Case], incoming: Option<(u8, u64)>, expected: &[usize]) {
        let mut index = ObjectIndex::default();
        let ids: Vec<ObjectId> = cases
            .iter()
            .map(|case| {
                let (id, entry) = id_of(case);
                index.add(id, entry);
                id
            })
            .collect();
        let incoming = incoming.map(|(owner, n_bytes)| (OwnerId([owner; 16]), n_bytes));
        let need = RoomNeed { n_bytes_max: 1_000, last_use: 10, incoming };
        let mut left = Vec::new();
        while let Some(id) = next_victim(&index, need) {
            index.remove(&id);
            left.push(ids.iter().position(|it| *it == id).unwrap());
        }
        assert_eq!(left, expected);
        assert_eq!((index.len(), index.n_bytes()), (0, 0));
    }

    const USUAL: Case =
        Case { owner: 0, text: &[1], first: 0, saved_ms: 100, file_bytes: 100, last_use: 10 };

    #[test]
    fn the_least_worth_leaves_first() {
        let cases = [
            Case { text: &[1], saved_ms: 300, ..USUAL },
            Case { text: &[2], file_bytes: 200, ..USUAL },
            Case { text: &[3], saved_ms: 200, ..USUAL },
            // A fifth of its time, after four uses of others.
            Case { text: &[4], saved_ms: 1_200, last_use: 6, ..USUAL },
        ];
        check(&cases, None, &[1, 2, 3, 0]);
    }

    #[test]
    fn what_is_shared_leaves_after_what_needs_it() {
        let cases = [
            Case { text: &[1, 1], saved_ms: 1, ..USUAL },
            Case { text: &[1, 1, 2], first: 2, saved_ms: 500, ..USUAL },
            Case { text: &[1, 1, 3], first: 2, saved_ms: 600, ..USUAL },
            Case { text: &[1, 1], first: 2, saved_ms: 700, ..USUAL },
        ];
        check(&cases, None, &[1, 2, 3, 0]);
    }

    #[test]
    fn owners_over_their_share_go_first() {
        let cases = [
            Case { owner: 1, text: &[1], saved_ms: 1, file_bytes: 300, ..USUAL },
            Case { owner: 2, text: &[1], saved_ms: 9_000, file_bytes: 300, ..USUAL },
            Case { owner: 2, text: &[2], saved_ms: 9_001, file_bytes: 300, ..USUAL },
        ];
        // Of two owners, each may have 500 bytes.
        check(&cases, None, &[1, 0, 2]);
        // What comes counts, too: the first owner would have 501, but the second one's are worth
        // more.
        check(&cases, Some((1, 201)), &[0, 1, 2]);
    }
}
