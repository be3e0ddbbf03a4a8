//! Addresses: places in texts by the tokens before them, namespaces, and owners.
//!
//! **Invariant:** a place's key depends on its namespace and on all tokens before it, and not on
//! how the text was cut. Knows no files.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use twox_hash::XxHash3_128;

/// The version of the format and of all keys. Another version shares nothing with this one.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of the secret of a folder.
pub const SECRET_BYTES: usize = 32;

/// Tokens that are hashed at a time.
const N_TOKENS_AT_ONCE: usize = 256;

/// The address of a place in a text: a hash of all tokens before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceKey(pub(crate) [u8; 16]);

/// Whose objects these are. Owners share nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub(crate) [u8; 16]);

/// A set of objects that can replace each other's computation: those of one model, arithmetic,
/// format and owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixNamespace {
    pub(crate) key: [u8; 16],
    pub(crate) owner: OwnerId,
}

/// What an object keeps of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// What attention keeps of a range of positions.
    Segment,
    /// The recurrent state after a position.
    State,
    /// What the tokens of an answer were read as, for a program that needs to know.
    Answer,
}

/// The name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The place at its end.
    pub end: PlaceKey,
    /// The place at its start: of a state, the same.
    pub start: PlaceKey,
    /// What it keeps.
    pub kind: ObjectKind,
}

/// Computes the keys of many places of one text in one pass.
#[derive(Clone)]
pub struct PlaceHasher(twox_hash::xxhash3_128::Hasher);

impl OwnerId {
    /// The owner of what is asked without a key.
    pub const ANONYMOUS: Self = Self([0; 16]);

    /// Returns the owner of a key's name: the first half of its HMAC-SHA256 with the folder's
    /// secret. Without the secret, a name cannot be guessed from the folder.
    pub(crate) fn of(secret: &[u8; SECRET_BYTES], key_name: &str) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes any length");
        mac.update(key_name.as_bytes());
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        let (half, _) = digest.split_first_chunk().expect("32 bytes have a first half");
        Self(*half)
    }
}

impl PrefixNamespace {
    /// Returns the namespace of what `identity` describes: all that decides the bytes of an object,
    /// such as model, backend, arithmetic and its version.
    #[must_use]
    pub fn new(identity: &[u8], owner: OwnerId) -> Self {
        let mut hash = XxHash3_128::new();
        hash.write(&(identity.len() as u64).to_le_bytes());
        hash.write(identity);
        hash.write(&FORMAT_VERSION.to_le_bytes());
        hash.write(&owner.0);
        Self { key: hash.finish_128().to_be_bytes(), owner }
    }

    /// Returns whose objects are in it.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }
}

impl PlaceKey {
    /// Returns the key as a number.
    #[must_use]
    pub fn number(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

impl PlaceHasher {
    /// Begins at the start of a text.
    #[must_use]
    pub fn new(namespace: PrefixNamespace) -> Self {
        let mut hash = XxHash3_128::new();
        hash.write(&namespace.key);
        Self(hash)
    }

    /// Goes on over these tokens.
    pub fn add(&mut self, tokens: &[u32]) {
        let mut bytes = [0; 4 * N_TOKENS_AT_ONCE];
        for tokens in tokens.chunks(N_TOKENS_AT_ONCE) {
            for (place, token) in bytes.chunks_exact_mut(4).zip(tokens) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            self.0.write(&bytes[..4 * tokens.len()]);
        }
    }

    /// Returns the key of the place after all tokens so far.
    #[must_use]
    pub fn key(&self) -> PlaceKey {
        PlaceKey(self.0.finish_128().to_be_bytes())
    }
}

impl ObjectKind {
    const ALL: [Self; 3] = [Self::Segment, Self::State, Self::Answer];

    /// Returns the ending of its files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::State => "state",
            Self::Answer => "answer",
        }
    }
}

impl ObjectId {
    /// Returns the name of its file.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}-{}.{}", self.end, self.start, self.kind.name())
    }

    /// Reads the name of a file; `None` if it is none of an object.
    #[must_use]
    pub fn of_file_name(name: &str) -> Option<Self> {
        let (keys, kind) = name.split_once('.')?;
        let (end, start) = keys.split_once('-')?;
        let kind = ObjectKind::ALL.into_iter().find(|it| it.name() == kind);
        let id = Self { end: place(end)?, start: place(start)?, kind: kind? };
        // Only one spelling is a name.
        (id.file_name() == name).then_some(id)
    }
}

fn place(digits: &str) -> Option<PlaceKey> {
    u128::from_str_radix(digits, 16).ok().map(|number| PlaceKey(number.to_be_bytes()))
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: [u8; 16]) -> fmt::Result {
    write!(f, "{:032x}", u128::from_be_bytes(bytes))
}

impl fmt::Display for PlaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.0)
    }
}

impl fmt::Debug for PlaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.0)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.0)
    }
}

impl fmt::Display for PrefixNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.key)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.0)
    }
}

impl fmt::Debug for PrefixNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.key)
    }
}

impl fmt::Debug for PlaceHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaceHasher({:?})", self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_depends_on_all_tokens_before_it_and_not_on_cuts() {
        let tokens: Vec<u32> = (0..2_000).map(|it| it * 77_777).collect();
        let namespace = PrefixNamespace::new(b"model", OwnerId::ANONYMOUS);
        // The definition, in one piece.
        let mut bytes = namespace.key.to_vec();
        bytes.extend(tokens.iter().flat_map(|it| it.to_le_bytes()));
        let expected = PlaceKey(XxHash3_128::oneshot(&bytes).to_be_bytes());
        for cut in [0, 1, 255, 256, 257, 1_999, 2_000] {
            let mut hasher = PlaceHasher::new(namespace);
            hasher.add(&tokens[..cut]);
            let _between = hasher.key();
            hasher.add(&tokens[cut..]);
            assert_eq!(hasher.key(), expected, "{cut}");
        }
        for changed in [0, 1_999] {
            let mut others = tokens.clone();
            others[changed] ^= 1;
            let mut hasher = PlaceHasher::new(namespace);
            hasher.add(&others);
            assert_ne!(hasher.key(), expected, "{changed}");
        }
    }

    #[test]
    fn namespaces_differ_by_identity_and_owner() {
        let owner = OwnerId::of(&[7; 32], "alice");
        let all = [
            PrefixNamespace::new(b"model", OwnerId::ANONYMOUS),
            PrefixNamespace::new(b"model", owner),
            PrefixNamespace::new(b"model2", owner),
            PrefixNamespace::new(b"", owner),
        ];
        for (idx, one) in all.iter().enumerate() {
            assert!(all[..idx].iter().all(|other| other.key != one.key));
        }
    }

    /// Test case 2 of RFC 4231, whose key is shorter, shows that the function is HMAC-SHA256; the
    /// second value is that of Python's `hmac.new(bytes(range(32)), b"alice", "sha256")`.
    #[test]
    fn owners_are_the_first_half_of_hmac_sha256() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        assert_eq!(digest[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        let secret = std::array::from_fn(|idx| u8::try_from(idx).unwrap());
        assert_eq!(
            format!("{:?}", OwnerId::of(&secret, "alice")),
            "6eefad2bed97b6d93ee663d67a44b460"
        );
    }

    #[test]
    fn names_of_files_have_one_spelling() {
        let namespace = PrefixNamespace::new(b"", OwnerId::ANONYMOUS);
        let start = PlaceHasher::new(namespace).key();
        for kind in ObjectKind::ALL {
            let id = ObjectId { end: PlaceKey([0xab; 16]), start, kind };
            let name = id.file_name();
            assert_eq!(ObjectId::of_file_name(&name), Some(id));
            for other in [
                name.to_uppercase(),
                format!("{name}.tmp"),
                format!("+{}", &name[1..]),
                name[1..].to_owned(),
                name.replace('-', ""),
                name.replace('.', ".x"),
                String::new(),
            ] {
                assert_eq!(ObjectId::of_file_name(&other), None, "{other}");
            }
        }
    }
}
