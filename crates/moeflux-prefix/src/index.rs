//! What a folder has, by the places in texts.
//!
//! **Invariant:** pure; it says what the folder had when it was looked at. Objects of one place
//! depend on what leads to this place, never the other way round.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::key::{ObjectId, ObjectKind, OwnerId, PlaceHasher, PlaceKey, PrefixNamespace};

/// What the index knows of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectEntry {
    pub(crate) namespace: PrefixNamespace,
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) file_bytes: u64,
    pub(crate) saved_ms: u64,
    /// When it was last used, by the time of its file.
    pub(crate) modified: Duration,
    /// The number of its last use.
    pub(crate) last_use: u64,
}

/// Whether a prefix is of use without the recurrent state at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateNeed {
    /// The model has no recurrent state.
    NoState,
    /// The prefix must end where a state is.
    StateAtEnd,
}

/// What a store has for a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nothing of its owner.
    Nothing,
    /// Nothing, but objects of its owner in other namespaces: of other models or arithmetics.
    OtherOnly,
    /// Objects.
    Objects,
}

/// The longest prefix that a store has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPrefix {
    /// How many tokens it has: 0 if nothing was found.
    pub n_tokens: usize,
    /// The segments that cover it, from the first token on.
    pub segments: Vec<ObjectId>,
    /// The position after the last of each segment.
    pub segment_ends: Vec<usize>,
    /// The state at its end, if one was needed.
    pub state: Option<ObjectId>,
}

/// All objects of a folder.
#[derive(Debug, Default)]
pub(crate) struct ObjectIndex {
    /// Ordered by their ends, so that those of one place are together.
    entries: BTreeMap<ObjectId, ObjectEntry>,
    /// How many objects need what leads to a place.
    n_needing: HashMap<PlaceKey, usize>,
    /// The positions at which objects of a namespace end, with their number.
    ends: HashMap<PrefixNamespace, BTreeMap<u64, usize>>,
    n_bytes: u64,
}

/// How a place is reached.
#[derive(Clone, Copy)]
struct Step {
    n_segments: usize,
    last: Option<ObjectId>,
}

impl ObjectIndex {
    /// Adds an object; one that is there is replaced.
    pub(crate) fn add(&mut self, id: ObjectId, entry: ObjectEntry) {
        self.remove(&id);
        self.n_bytes += entry.file_bytes;
        self.hold(id.start);
        *self.ends.entry(entry.namespace).or_default().entry(entry.end).or_default() += 1;
        self.entries.insert(id, entry);
    }

    /// Removes an object and returns what was known of it.
    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<ObjectEntry> {
        let entry = self.entries.remove(id)?;
        self.n_bytes -= entry.file_bytes;
        self.release(id.start);
        if let Some(ends) = self.ends.get_mut(&entry.namespace) {
            let count = ends.get_mut(&entry.end);
            if count.is_some_and(|it| {
                *it -= 1;
                *it == 0
            }) {
                ends.remove(&entry.end);
            }
            if ends.is_empty() {
                self.ends.remove(&entry.namespace);
            }
        }
        Some(entry)
    }

    /// Keeps what leads to a place: for an object that starts there, or is a state there.
    pub(crate) fn hold(&mut self, place: PlaceKey) {
        *self.n_needing.entry(place).or_default() += 1;
    }

    /// Ends a [`ObjectIndex::hold`].
    pub(crate) fn release(&mut self, place: PlaceKey) {
        if let Some(count) = self.n_needing.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.n_needing.remove(&place);
            }
        }
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<&ObjectEntry> {
        self.entries.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut ObjectEntry> {
        self.entries.get_mut(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &ObjectEntry)> {
        self.entries.iter()
    }

    /// Returns the objects on which no other one depends.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (&ObjectId, &ObjectEntry)> {
        let is_leaf = |id: &ObjectId| match id.kind {
            ObjectKind::Segment => !self.n_needing.contains_key(&id.end),
            ObjectKind::State | ObjectKind::Answer => true,
        };
        self.entries.iter().filter(move |(id, _)| is_leaf(id))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the bytes of all files.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    pub(crate) fn holding(&self, namespace: PrefixNamespace) -> Holding {
        if self.ends.contains_key(&namespace) {
            return Holding::Objects;
        }
        match self.ends.keys().any(|it| it.owner() == namespace.owner()) {
            true => Holding::OtherOnly,
            false => Holding::Nothing,
        }
    }

    /// Returns the bytes of each owner.
    pub(crate) fn bytes_by_owner(&self) -> HashMap<OwnerId, u64> {
        let mut owners = HashMap::new();
        for entry in self.entries.values() {
            *owners.entry(entry.namespace.owner()).or_default() += entry.file_bytes;
        }
        owners
    }

    /// Finds the longest prefix of `tokens` that segments cover without a gap.
    pub(crate) fn find(
        &self,
        namespace: PrefixNamespace,
        tokens: &[u32],
        need: StateNeed,
    ) -> FoundPrefix {
        let mut reached = HashMap::new();
        let mut hasher = PlaceHasher::new(namespace);
        reached.insert(hasher.key(), Step { n_segments: 0, last: None });
        let mut best = None;
        let mut at = 0;
        for &end in self.ends.get(&namespace).into_iter().flat_map(BTreeMap::keys) {
            let position = usize::try_from(end).ok().filter(|&it| it <= tokens.len());
            let Some(position) = position else { break };
            hasher.add(&tokens[at..position]);
            at = position;
            let place = hasher.key();
            let Some(step) = self.best_step(place, &reached) else { continue };
            reached.insert(place, step);
            let state = ObjectId { end: place, start: place, kind: ObjectKind::State };
            let state = self.entries.contains_key(&state).then_some(state);
            if need == StateNeed::NoState {
                best = Some((position, place, None));
            } else if state.is_some() {
                best = Some((position, place, state));
            }
        }
        let Some((n_tokens, mut place, state)) = best else { return FoundPrefix::default() };
        let mut segments = Vec::new();
        while let Some(last) = reached.get(&place).and_then(|it| it.last) {
            segments.push(last);
            place = last.start;
        }
        segments.reverse();
        let end = |id: &ObjectId| usize::try_from(self.entries.get(id)?.end).ok();
        let segment_ends = segments.iter().filter_map(end).collect();
        FoundPrefix { n_tokens, segments, segment_ends, state }
    }

    /// Returns the segment by which a place is reached with the fewest files.
    fn best_step(&self, place: PlaceKey, reached: &HashMap<PlaceKey, Step>) -> Option<Step> {
        let first = ObjectId { end: place, start: PlaceKey([0; 16]), kind: ObjectKind::Segment };
        let last = ObjectId { end: place, start: PlaceKey([255; 16]), kind: ObjectKind::Answer };
        let segments = self.entries.range(first..=last).map(|(id, _)| *id);
        let steps = segments.filter(|id| id.kind == ObjectKind::Segment).filter_map(|id| {
            let n_segments = reached.get(&id.start)?.n_segments + 1;
            Some(Step { n_segments, last: Some(id) })
        });
        steps.min_by_key(|it| it.n_segments)
    }
}
