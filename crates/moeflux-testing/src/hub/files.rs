//! The files of a repository, with the hashes that the hub names them by.

use std::fmt::Write as _;
use std::sync::Arc;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::{Value, json};

use crate::random::Rng;

/// Files from this size on are large ones.
const LARGE_BYTES: u64 = 10_000;

/// The length of a block of noise. It differs from that of pieces, so that no two pieces are equal.
const BLOCK_BYTES: usize = (1 << 20) + 4099;

/// The contents of a file: one block, repeated.
#[derive(Clone, Debug)]
pub struct HostedContents {
    block: Arc<[u8]>,
    n_bytes: u64,
}

impl HostedContents {
    /// These bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self { block: bytes.into(), n_bytes: bytes.len() as u64 }
    }

    /// Random bytes.
    pub fn noise(seed: u64, n_bytes: u64) -> Self {
        let n_block = usize::try_from(n_bytes).unwrap().clamp(1, BLOCK_BYTES);
        Self { block: Rng::new(seed).bytes(n_block).into(), n_bytes }
    }

    /// The bytes of a range, in parts.
    pub(super) fn parts(&self, begin: u64, end: u64) -> impl Iterator<Item = &[u8]> {
        let mut at = begin;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let offset = usize::try_from(at % self.block.len() as u64).unwrap();
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let len = left.min(self.block.len() - offset);
            at += len as u64;
            Some(&self.block[offset..offset + len])
        })
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.parts(0, self.n_bytes).collect::<Vec<_>>().concat()
    }
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub struct HubFile {
    pub(super) path: String,
    pub(super) contents: HostedContents,
    pub(super) is_large: bool,
    /// Git's hash of the file, or of the pointer to a large one.
    pub(super) oid: String,
    pub(super) sha256: String,
    /// The length that the hub states.
    listed_bytes: u64,
}

impl HubFile {
    /// A file that is listed with its own length.
    pub fn new(path: &str, contents: HostedContents) -> Self {
        let n_bytes = contents.n_bytes;
        let is_large = n_bytes >= LARGE_BYTES || path.ends_with(".safetensors");
        let mut sha256 = Context::new(&SHA256);
        contents.parts(0, n_bytes).for_each(|it| sha256.update(it));
        let sha256 = hex(sha256.finish().as_ref());
        let pointer = format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {n_bytes}\n"
        );
        let oid = match is_large {
            true => git_hash(&HostedContents::new(pointer.as_bytes())),
            false => git_hash(&contents),
        };
        let listed_bytes = n_bytes;
        Self { path: path.to_owned(), contents, is_large, oid, sha256, listed_bytes }
    }

    /// The same file, listed with another length.
    pub fn listed_with(self, listed_bytes: u64) -> Self {
        Self { listed_bytes, ..self }
    }

    /// Its path in the repository.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its real length.
    pub fn n_bytes(&self) -> u64 {
        self.contents.n_bytes
    }

    /// Its contents.
    pub fn bytes(&self) -> Vec<u8> {
        self.contents.bytes()
    }

    /// The name of its blob in the cache.
    pub fn etag(&self) -> &str {
        if self.is_large { &self.sha256 } else { &self.oid }
    }

    pub(super) fn entry(&self) -> Value {
        let mut entry = json!({
            "type": "file", "oid": self.oid, "size": self.listed_bytes, "path": self.path,
        });
        if self.is_large {
            let pointer =
                json!({"oid": self.sha256, "size": self.listed_bytes, "pointerSize": 134});
            entry["lfs"] = pointer;
        }
        entry
    }
}

fn git_hash(contents: &HostedContents) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", contents.n_bytes).as_bytes());
    contents.parts(0, contents.n_bytes).for_each(|it| context.update(it));
    hex(context.finish().as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
