//! The hashes by which the hub names files: SHA-256 for large files, git's SHA-1 for others.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::name::is_hex;

/// A file's hash, which is its name in `blobs`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum BlobId {
    /// SHA-256 of the contents.
    Sha256(String),
    /// SHA-1 of the contents with git's blob header in front.
    Git(String),
}

/// The expected contents: their hash and length.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedBlob {
    pub(crate) blob: BlobId,
    pub(crate) n_bytes: u64,
}

impl BlobId {
    /// Parses a SHA-256; `None` if it is malformed.
    pub(crate) fn sha256(digits: &str) -> Option<Self> {
        is_hex(digits, 64).then(|| Self::Sha256(digits.to_owned()))
    }

    /// Parses git's hash of a blob; `None` if it is malformed.
    pub(crate) fn git(digits: &str) -> Option<Self> {
        is_hex(digits, 40).then(|| Self::Git(digits.to_owned()))
    }

    /// Returns the hexadecimal digits.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// Starts a hash of this kind for contents of `n_bytes`.
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

    /// Returns the name of the kind of hash.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::Git(_) => "git SHA-1",
        }
    }
}

/// A hash in progress.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the hexadecimal digits.
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
