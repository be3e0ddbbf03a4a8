//! All files of a repository at a commit, in the format of the hub and in that of the cache.
//!
//! **Invariant:** every hash is well-formed; names are stored as received, and checked where they
//! become paths.

use std::collections::BTreeMap;

use moeflux_io::OneLine;
use serde::{Deserialize, Serialize};

use crate::hash::{BlobId, ExpectedBlob};

/// The version of the cache's format for listings.
const FORMAT_VERSION: u32 = 1;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFile {
    /// The length of the file.
    pub n_bytes: u64,
    pub(crate) blob: BlobId,
    tree_entry: TreeEntry,
}

/// The files of a commit, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing(BTreeMap<String, RepoFile>);

impl Listing {
    /// Returns the files, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &RepoFile)> {
        self.0.iter().map(|(path, file)| (path.as_str(), file))
    }

    /// Returns a file.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&RepoFile> {
        self.0.get(path)
    }

    /// Adds a page of the hub's answer. Returns the number of its entries.
    ///
    /// # Errors
    ///
    /// The problem with the page.
    pub(crate) fn add_page(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let page: Vec<PageEntry> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let n_entries = page.len();
        for entry in page.into_iter().filter(|entry| entry.kind == "file") {
            let lfs = entry.lfs;
            let tree_entry = TreeEntry {
                size: entry.size,
                blob_id: entry.oid,
                lfs_sha256: lfs.as_ref().map(|it| it.oid.clone()),
                lfs_size: lfs.map(|it| it.size),
                xet_hash: entry.xet_hash,
            };
            let repo_file = RepoFile::new(tree_entry)
                .ok_or_else(|| format!("the hash of `{}` is none", OneLine::name(&entry.path)))?;
            self.0.insert(entry.path, repo_file);
        }
        Ok(n_entries)
    }

    /// Formats the listing for the cache.
    pub(crate) fn to_cached(&self) -> Vec<u8> {
        let files =
            self.0.iter().map(|(path, file)| (path.clone(), file.tree_entry.clone())).collect();
        let tree = CachedTree { format_version: FORMAT_VERSION, files };
        let mut bytes = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let mut writer = serde_json::Serializer::with_formatter(&mut bytes, format);
        tree.serialize(&mut writer).expect("strings and numbers can be written to memory");
        bytes
    }

    /// Parses a listing from the cache; `None` if its format is unknown or invalid.
    pub(crate) fn of_cached(bytes: &[u8]) -> Option<Self> {
        let tree: CachedTree = serde_json::from_slice(bytes).ok()?;
        if tree.format_version != FORMAT_VERSION {
            return None;
        }
        let files = tree
            .files
            .into_iter()
            .map(|(path, tree_entry)| Some((path, RepoFile::new(tree_entry)?)));
        files.collect::<Option<_>>().map(Self)
    }
}

impl RepoFile {
    /// Returns the expected contents.
    pub(crate) fn expected(&self) -> ExpectedBlob {
        ExpectedBlob { blob: self.blob.clone(), n_bytes: self.n_bytes }
    }

    fn new(tree_entry: TreeEntry) -> Option<Self> {
        let git = BlobId::git(&tree_entry.blob_id)?;
        Some(match &tree_entry.lfs_sha256 {
            Some(digits) => Self {
                n_bytes: tree_entry.lfs_size.unwrap_or(tree_entry.size),
                blob: BlobId::sha256(digits)?,
                tree_entry,
            },
            None => Self { n_bytes: tree_entry.size, blob: git, tree_entry },
        })
    }
}

/// An entry of the hub's answer; folders are entries as well.
#[derive(Debug, Deserialize)]
struct PageEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
    #[serde(rename = "xetHash")]
    xet_hash: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// A listing in the cache, as `huggingface_hub` writes it.
#[derive(Debug, Deserialize, Serialize)]
struct CachedTree {
    format_version: u32,
    files: BTreeMap<String, TreeEntry>,
}

/// A file in such a listing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct TreeEntry {
    size: u64,
    blob_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lfs_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lfs_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xet_hash: Option<String>,
}

#[cfg(test)]
impl Listing {
    /// Creates a listing with files of these names and lengths.
    pub(crate) fn of(files: &[(&str, u64)]) -> Self {
        let entry = |(path, size): &(&str, u64)| {
            serde_json::json!({
                "type": "file", "path": path, "size": size, "oid": "0".repeat(40),
            })
        };
        let page = serde_json::Value::Array(files.iter().map(entry).collect());
        let mut listing = Self::default();
        listing.add_page(page.to_string().as_bytes()).unwrap();
        listing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"[
        {"type": "directory", "oid": "x", "size": 0, "path": "sub"},
        {"type": "file", "oid": "43bd404b159de6fba7c2f4d3264347668d43af25", "size": 391,
         "path": "sub/config.json", "lastCommit": null},
        {"type": "file", "oid": "8095a62ccb4d806da7666fcda07467e2d150218e", "size": 5,
         "path": "model.safetensors", "xetHash": "b",
         "lfs": {"oid": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                 "size": 5000000000, "pointerSize": 135}}]"#;

    #[test]
    fn a_page_of_the_hub_becomes_a_listing_that_is_kept() {
        let mut listing = Listing::default();
        assert_eq!(listing.add_page(PAGE.as_bytes()), Ok(3));
        let large = listing.get("model.safetensors").unwrap();
        assert_eq!((large.n_bytes, large.blob.kind()), (5_000_000_000, "SHA-256"));
        let small = listing.get("sub/config.json").unwrap();
        assert_eq!((small.n_bytes, small.blob.kind()), (391, "git SHA-1"));
        let cached = listing.to_cached();
        assert_eq!(Listing::of_cached(&cached), Some(listing));
        let text = String::from_utf8(cached).unwrap();
        let expected = "{\n \"format_version\": 1,\n \"files\": {\n  \"model.safetensors\": {\n   \
                        \"size\": 5,\n   \"blob_id\": ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("\n  }\n }\n}"), "{text}");
    }

    #[test]
    fn invalid_listings_are_refused() {
        let add = |text: &str| Listing::default().add_page(text.as_bytes());
        for text in ["", "{}", "[{}]", r#"[{"type": "file", "path": "x"}]"#] {
            assert!(add(text).is_err(), "{text}");
        }
        let hash = r#"[{"type": "file", "path": "x", "size": 1, "oid": "../../../../etc/passwd"}]"#;
        assert!(add(hash).unwrap_err().contains("hash of `x`"));
        assert!(add(r#"[{"type": "file", "path": "x", "size": -1}]"#).is_err());
        for text in ["", "[]", r#"{"format_version": 2, "files": {}}"#] {
            assert_eq!(Listing::of_cached(text.as_bytes()), None);
        }
    }
}
