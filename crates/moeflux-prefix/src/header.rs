//! The file of an object: where its parts are, and its header, to and from bytes.
//!
//! ```text
//! header    fields, the tokens of first..end, xxh3-64 of these; zeros to a multiple of 4096
//! payload   at a multiple of 4096, so that it can be read past the page cache
//! sums      xxh3-64 of each MiB of the payload
//! ```
//!
//! **Invariant:** a parsed header has the length of the file, and writes the same bytes again.
//! No size in it is used before it was compared with that length.

use twox_hash::XxHash3_64;

use crate::error::ObjectDamage;
use crate::key::{FORMAT_VERSION, ObjectId, ObjectKind, OwnerId, PlaceKey, PrefixNamespace};

/// Bytes of the payload with a checksum of their own.
pub const CHUNK_BYTES: usize = 1 << 20;

/// The payload begins at a multiple of this: the block of nearly all drives.
pub const PAYLOAD_ALIGN: usize = 4096;

/// Limit for the tokens of one object: a longer context than models have.
pub const N_TOKENS_MAX: u64 = 1 << 22;

/// Bytes of the fields before the tokens.
pub const FIELDS_BYTES: usize = 136;

const MAGIC: [u8; 8] = *b"moeflxpc";
const SUM_BYTES: usize = 8;

/// All that an object's file says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Name of the object.
    pub id: ObjectId,
    /// Where it may be used.
    pub namespace: PrefixNamespace,
    /// First position.
    pub first: u64,
    /// Position after the last; of a state, the same.
    pub end: u64,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// What computing it would cost, in ms.
    pub saved_ms: u64,
    /// When it was made, in s since 1970.
    pub created_s: u64,
    /// The tokens of `first..end`.
    pub tokens: Vec<u32>,
}

/// Where the parts of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// Where the payload begins.
    pub payload_at: u64,
    /// Where the checksums begin.
    pub sums_at: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl FileLayout {
    /// Lays out a file; `None` if no file can be that long.
    #[must_use]
    pub fn of(n_tokens: u64, payload_bytes: u64) -> Option<Self> {
        let fixed_bytes = (FIELDS_BYTES + SUM_BYTES) as u64;
        let header_bytes = n_tokens.checked_mul(4)?.checked_add(fixed_bytes)?;
        let payload_at = header_bytes.checked_next_multiple_of(PAYLOAD_ALIGN as u64)?;
        let sums_at = payload_at.checked_add(payload_bytes)?;
        let n_chunks = payload_bytes.div_ceil(CHUNK_BYTES as u64);
        let file_bytes = n_chunks.checked_mul(SUM_BYTES as u64)?.checked_add(sums_at)?;
        Some(Self { payload_at, sums_at, file_bytes })
    }
}

/// Reads fields one after another.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn number(&mut self) -> Option<u64> {
        self.next().map(u64::from_le_bytes)
    }
}

impl ObjectHeader {
    /// Returns where the parts of the file are.
    ///
    /// # Errors
    ///
    /// [`ObjectDamage::Length`] if no file can have these lengths.
    pub fn layout(&self) -> Result<FileLayout, ObjectDamage> {
        let layout = FileLayout::of(self.end - self.first, self.payload_bytes);
        layout.ok_or(ObjectDamage::Length(u64::MAX))
    }

    /// Returns the bytes in front of the payload.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let kind = match self.id.kind {
            ObjectKind::Segment => 1,
            ObjectKind::State => 2,
            ObjectKind::Answer => 3,
        };
        let mut bytes = Vec::with_capacity(FIELDS_BYTES + 4 * self.tokens.len() + SUM_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(self.id.start.0);
        bytes.extend(self.id.end.0);
        bytes.extend(self.namespace.key);
        bytes.extend(self.namespace.owner.0);
        let numbers =
            [self.first, self.end, self.payload_bytes, self.saved_ms, self.created_s, 0, 0];
        bytes.extend(numbers.iter().flat_map(|it| it.to_le_bytes()));
        debug_assert_eq!(bytes.len(), FIELDS_BYTES, "every field has its place");
        bytes.extend(self.tokens.iter().flat_map(|it| it.to_le_bytes()));
        bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(PAYLOAD_ALIGN), 0);
        bytes
    }

    /// Returns how many bytes of the file the header takes, by its fields and the file's length.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn len_bytes(fields: &[u8], file_bytes: u64) -> Result<usize, ObjectDamage> {
        let (_, layout) = parse_fields(fields, file_bytes)?;
        usize::try_from(layout.payload_at).map_err(|_| ObjectDamage::Length(file_bytes))
    }

    /// Parses the bytes in front of the payload.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self, ObjectDamage> {
        let (mut header, layout) = parse_fields(bytes, file_bytes)?;
        let cut = ObjectDamage::Length(file_bytes);
        let header_bytes = usize::try_from(layout.payload_at).map_err(|_| cut)?;
        let n_tokens = usize::try_from(header.end - header.first).map_err(|_| cut)?;
        let bytes = bytes.get(..header_bytes).ok_or(cut)?;
        let (summed, rest) = bytes.split_at(FIELDS_BYTES + 4 * n_tokens);
        let mut rest = FieldReader(rest);
        let is_sound = rest.number() == Some(XxHash3_64::oneshot(summed));
        if !is_sound || rest.0.iter().any(|&byte| byte != 0) {
            return Err(ObjectDamage::Sum("header"));
        }
        let (tokens, _) = summed[FIELDS_BYTES..].as_chunks();
        header.tokens = tokens.iter().map(|&token| u32::from_le_bytes(token)).collect();
        Ok(header)
    }
}

/// Reads all but the tokens.
fn parse_fields(bytes: &[u8], file_bytes: u64) -> Result<(ObjectHeader, FileLayout), ObjectDamage> {
    let cut = ObjectDamage::Length(file_bytes);
    let mut fields = FieldReader(bytes);
    if fields.next() != Some(MAGIC) {
        return Err(ObjectDamage::Magic);
    }
    let version = u32::from_le_bytes(fields.next().ok_or(cut)?);
    if version != FORMAT_VERSION {
        return Err(ObjectDamage::Version(version));
    }
    let kind = match fields.next().ok_or(cut)? {
        [1, 0, 0, 0] => ObjectKind::Segment,
        [2, 0, 0, 0] => ObjectKind::State,
        [3, 0, 0, 0] => ObjectKind::Answer,
        [kind, ..] => return Err(ObjectDamage::Kind(kind)),
    };
    let mut key = || fields.next::<16>().ok_or(cut);
    let (start, end_key) = (PlaceKey(key()?), PlaceKey(key()?));
    let namespace = PrefixNamespace { key: key()?, owner: OwnerId(key()?) };
    let mut number = || fields.number().ok_or(cut);
    let (first, end, payload_bytes) = (number()?, number()?, number()?);
    let (saved_ms, created_s) = (number()?, number()?);
    if (number()?, number()?) != (0, 0) {
        return Err(ObjectDamage::Sum("header"));
    }
    let is_range = match kind {
        ObjectKind::Segment | ObjectKind::Answer => {
            first < end && end - first <= N_TOKENS_MAX && start != end_key
        }
        ObjectKind::State => first == end && end > 0 && start == end_key,
    };
    if !is_range {
        return Err(ObjectDamage::Positions { first, end });
    }
    let layout = FileLayout::of(end - first, payload_bytes);
    let layout = layout.filter(|it| it.file_bytes == file_bytes).ok_or(cut)?;
    let id = ObjectId { end: end_key, start, kind };
    let tokens = Vec::new();
    let header =
        ObjectHeader { id, namespace, first, end, payload_bytes, saved_ms, created_s, tokens };
    Ok((header, layout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PlaceHasher;

    fn header(kind: ObjectKind, n_tokens: u32, payload_bytes: u64) -> ObjectHeader {
        let namespace = PrefixNamespace::new(b"model", OwnerId([3; 16]));
        let mut hasher = PlaceHasher::new(namespace);
        hasher.add(&[5, 6, 7]);
        let start = hasher.key();
        let tokens: Vec<u32> = (0..n_tokens).map(|it| it.wrapping_mul(1_000_003)).collect();
        hasher.add(&tokens);
        let id = ObjectId { end: hasher.key(), start, kind };
        let (first, end) = (3, 3 + u64::from(n_tokens));
        ObjectHeader {
            id,
            namespace,
            first,
            end,
            payload_bytes,
            saved_ms: 1_234,
            created_s: 99,
            tokens,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for (kind, n_tokens) in [
            (ObjectKind::Segment, 1),
            (ObjectKind::Segment, 5_000),
            (ObjectKind::State, 0),
            (ObjectKind::Answer, 300),
        ] {
            for payload_bytes in [0, 1, 4096, (1 << 20) + 1] {
                let header = header(kind, n_tokens, payload_bytes);
                let bytes = header.to_bytes();
                let layout = header.layout().unwrap();
                assert_eq!(layout.payload_at, bytes.len() as u64);
                assert_eq!(layout.payload_at % 4096, 0);
                let n_chunks = payload_bytes.div_ceil(1 << 20);
                assert_eq!(layout.file_bytes, layout.sums_at + 8 * n_chunks);
                let n_bytes = ObjectHeader::len_bytes(&bytes[..FIELDS_BYTES], layout.file_bytes);
                assert_eq!(n_bytes, Ok(bytes.len()));
                assert_eq!(ObjectHeader::parse(&bytes, layout.file_bytes), Ok(header));
            }
        }
    }

    #[test]
    fn every_changed_bit_and_every_other_length_is_refused() {
        let header = header(ObjectKind::Segment, 3, 10);
        let bytes = header.to_bytes();
        let file_bytes = header.layout().unwrap().file_bytes;
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            ObjectHeader::parse(&changed, file_bytes).unwrap_err();
        }
        for n_bytes in 0..bytes.len() {
            ObjectHeader::parse(&bytes[..n_bytes], file_bytes).unwrap_err();
            ObjectHeader::parse(&bytes[..n_bytes], n_bytes as u64).unwrap_err();
        }
        for n_bytes in [0, file_bytes - 1, file_bytes + 1, u64::MAX] {
            ObjectHeader::parse(&bytes, n_bytes).unwrap_err();
        }
    }

    #[test]
    fn sizes_that_no_file_has_overflow_nothing() {
        for (n_tokens, payload_bytes) in [(u64::MAX, 0), (1 << 62, 0), (1, u64::MAX)] {
            assert_eq!(FileLayout::of(n_tokens, payload_bytes), None);
        }
        let mut header = header(ObjectKind::Segment, 3, 10);
        header.end = header.first + N_TOKENS_MAX + 1;
        let damage = ObjectHeader::parse(&header.to_bytes(), 4096 + 18).unwrap_err();
        assert!(matches!(damage, ObjectDamage::Positions { .. }), "{damage}");
    }
}
