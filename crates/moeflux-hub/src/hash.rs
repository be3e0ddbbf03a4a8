//! The hashes that the hub names files by: SHA-256 of large files, git's SHA-1 of others.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::name::is_hex;

/// A file's hash, which is its name among the blobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum BlobId {
    /// Of the contents.
    Sha256(String),
    /// Of the contents behind git's header of a blob.
    Git(String),
}

/// Contents that are expected, and how long they are.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) blob: BlobId,
    pub(crate) n_bytes: u64,
}

impl BlobId {
    /// A SHA-256, if it looks like one.
    pub(crate) fn sha256(digits: &str) -> Option<Self> {
        is_hex(digits, 64).then(|| Self::Sha256(digits.to_owned()))
    }

    /// Git's name of a blob, if it looks like one.
    pub(crate) fn git(digits: &str) -> Option<Self> {
        is_hex(digits, 40).then(|| Self::Git(digits.to_owned()))
    }

    /// Its digits.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// Computes a hash of this kind for contents of `n_bytes`.
    pub(crate) fn hasher(&self, n_bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher(Context::new(&SHA256)),
            Self::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {n_bytes}\0").as_bytes());
                Hasher(context)
            }
        }
    }

    /// What kind of hash it is.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::Git(_) => "git SHA-1",
        }
    }
}

/// A hash under way.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    /// The next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digits.
    pub(crate) fn finish(self) -> String {
        let digest = self.0.finish();
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_sha256sum_and_of_git() {
        let of = |id: &BlobId, bytes: &[u8]| {
            let mut hasher = id.hasher(bytes.len() as u64);
            bytes.chunks(2).for_each(|it| hasher.update(it));
            hasher.finish()
        };
        let sha256 = BlobId::sha256(&"0".repeat(64)).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(of(&sha256, b"abc"), abc);
        // printf 'hello\n' | git hash-object --stdin
        let git = BlobId::git(&"0".repeat(40)).unwrap();
        assert_eq!(of(&git, b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(BlobId::git("xyz"), None);
        assert_eq!(BlobId::sha256(&"A".repeat(64)), None);
    }
}
