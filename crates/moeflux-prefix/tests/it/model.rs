//! What the store must do, by comparing tokens one by one: no hashes, no files.

use std::collections::{BTreeMap, HashMap};

use moeflux_prefix::{
    FoundPrefix, NewObject, ObjectHeader, ObjectId, ObjectKind, PrefixNamespace, StateNeed,
};
use moeflux_testing::random::Rng;
use twox_hash::XxHash3_64;

/// An object as the caller gave it.
#[derive(Clone, Debug)]
pub(crate) struct ModelObject {
    pub(crate) namespace: PrefixNamespace,
    pub(crate) kind: ObjectKind,
    /// All tokens up to its end.
    pub(crate) tokens: Vec<u32>,
    pub(crate) first: usize,
    pub(crate) payload: Vec<u8>,
    pub(crate) saved_ms: u64,
}

impl ModelObject {
    /// Draws an object of a text. Its payload depends on its place alone.
    pub(crate) fn draw(rng: &mut Rng, namespaces: &[PrefixNamespace]) -> Self {
        let namespace_idx = rng.below(namespaces.len());
        let tokens = draw_text(rng);
        let kind = rng.pick(&[
            ObjectKind::State,
            ObjectKind::Answer,
            ObjectKind::Segment,
            ObjectKind::Segment,
        ]);
        let first = match kind {
            ObjectKind::State => tokens.len(),
            ObjectKind::Segment | ObjectKind::Answer => 2 * rng.below(tokens.len().div_ceil(2)),
        };
        let seed = tokens.iter().fold(namespace_idx as u64, |sum, it| sum * 31 + u64::from(*it));
        let mut of_place = Rng::new(seed * 64 + first as u64 * 3 + kind as u64);
        let n_bytes = of_place.pick(&[0, 1, 100, 4096, 9000]);
        let payload = of_place.bytes(n_bytes);
        let saved_ms = of_place.bits() % 10_000;
        Self { namespace: namespaces[namespace_idx], kind, tokens, first, payload, saved_ms }
    }

    pub(crate) fn as_new(&self) -> NewObject<'_> {
        NewObject {
            namespace: self.namespace,
            kind: self.kind,
            tokens: &self.tokens,
            first: self.first,
            payload_bytes: self.payload.len() as u64,
            saved_ms: self.saved_ms,
        }
    }

    /// Bytes of its file, by the format's description.
    pub(crate) fn file_bytes(&self) -> u64 {
        let header_bytes = 136 + 4 * (self.tokens.len() - self.first) + 8;
        let n_chunks = self.payload.len().div_ceil(1 << 20);
        (header_bytes.next_multiple_of(4096) + self.payload.len() + 8 * n_chunks) as u64
    }

    /// Whether this is its file, by the format's description.
    pub(crate) fn is_sound(&self, id: &ObjectId, file: &[u8]) -> bool {
        let header = ObjectHeader::parse(file, file.len() as u64);
        if !header.is_ok_and(|it| it.id == *id) {
            return false;
        }
        let payload_at = file.len() - self.payload.len() - 8 * self.payload.len().div_ceil(1 << 20);
        let (payload, sums) = file[payload_at..].split_at(self.payload.len());
        let expected_sums = payload.chunks(1 << 20).map(XxHash3_64::oneshot);
        let expected_sums: Vec<u8> = expected_sums.flat_map(u64::to_le_bytes).collect();
        payload == self.payload && sums == expected_sums
    }

    /// Whether this object is of no use without `other`.
    pub(crate) fn needs(&self, other: &Self) -> bool {
        other.kind == ObjectKind::Segment
            && other.namespace == self.namespace
            && other.tokens == self.tokens[..self.first]
    }
}

/// Draws a text that has its beginning in common with others.
pub(crate) fn draw_text(rng: &mut Rng) -> Vec<u32> {
    let n_tokens = rng.between(1, 10);
    (0..n_tokens)
        .map(|idx| if idx < 4 { 7 } else { u32::try_from(rng.below(2)).unwrap() })
        .collect()
}

/// Checks what was found of a text against the objects that are there.
pub(crate) fn check_found(
    found: &FoundPrefix,
    text: (PrefixNamespace, &[u32]),
    need: StateNeed,
    there: &HashMap<ObjectId, &ModelObject>,
) {
    let (namespace, tokens) = text;
    let of_text: Vec<&&ModelObject> = there
        .values()
        .filter(|it| it.namespace == namespace && tokens.starts_with(&it.tokens))
        .collect();
    let mut n_segments = BTreeMap::from([(0, 0)]);
    for end in 1..=tokens.len() {
        let ending = of_text.iter().filter(|it| it.kind == ObjectKind::Segment);
        let ending = ending.filter(|it| it.tokens.len() == end);
        if let Some(least) = ending.filter_map(|it| n_segments.get(&it.first)).min() {
            n_segments.insert(end, least + 1);
        }
    }
    let has_state = |end: usize| {
        of_text.iter().any(|it| it.kind == ObjectKind::State && it.tokens.len() == end)
    };
    let ends = n_segments.keys().rev().copied();
    let best = ends.filter(|&it| it > 0 && (need == StateNeed::NoState || has_state(it))).max();
    assert_eq!(found.n_tokens, best.unwrap_or(0), "of {tokens:?}");
    assert_eq!(found.segments.len(), n_segments[&found.n_tokens]);
    let mut at = 0;
    for id in &found.segments {
        let segment = there[id];
        assert_eq!((segment.kind, segment.first), (ObjectKind::Segment, at));
        assert!(segment.namespace == namespace && tokens.starts_with(&segment.tokens));
        at = segment.tokens.len();
    }
    assert_eq!(at, found.n_tokens);
    assert_eq!(found.state.is_some(), need == StateNeed::StateAtEnd && at > 0);
    if let Some(state) = found.state {
        assert_eq!(
            (there[&state].kind, &there[&state].tokens[..]),
            (ObjectKind::State, &tokens[..at])
        );
    }
}
