//! Names that become parts of paths: of repositories, revisions, commits, hashes and files.
//!
//! **Invariant:** a name that was checked here cannot leave the folder that it is joined to, on any
//! system.

pub(crate) mod link;
pub(crate) mod quant;
pub(crate) mod glob;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use moeflux_io::OneLine;

use crate::error::{Error, Result};
use crate::name::quant::Quant;

/// The hub's own limit on the length of a name.
const ID_CHARS_MAX: usize = 96;

/// Maximum length of a revision; longer ones do not fit into a path.
const REVISION_CHARS_MAX: usize = 256;

/// Maximum length of one path segment on common file systems.
const SEGMENT_BYTES_MAX: usize = 255;

/// The default revision.
pub(crate) const MAIN: &str = "main";

/// Names of devices on Windows, reserved with any extension.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// The name of a repository: `OWNER/NAME`, or `NAME` for the oldest ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId(String);

impl RepoId {
    /// Returns the name as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the model's folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// Returns the model for the folder of one of its revisions,
    /// `models--OWNER--NAME/snapshots/COMMIT`.
    #[must_use]
    pub fn of_snapshot(dir: &Path) -> Option<Self> {
        let snapshots = dir.parent()?;
        let is_snapshot = snapshots.ends_with("snapshots") && is_commit(dir.file_name()?.to_str()?);
        let folder = snapshots.parent().filter(|_| is_snapshot)?;
        Self::of_folder(folder.file_name()?.to_str()?)
    }

    /// Returns the model for a folder name in the cache.
    pub(crate) fn of_folder(name: &str) -> Option<Self> {
        name.strip_prefix("models--")?.replace("--", "/").parse().ok()
    }
}

impl FromStr for RepoId {
    type Err = Error;

    /// Parses a name by the hub's own rules.
    fn from_str(text: &str) -> Result<Self> {
        let is_part = |part: &str| {
            !part.is_empty()
                && part.chars().all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
        };
        let is_valid = text.len() <= ID_CHARS_MAX
            && text.split('/').count() <= 2
            && text.split('/').all(is_part)
            && !text.contains("--")
            && !text.contains("..")
            && !text.ends_with(".git");
        if is_valid {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::Asked(format!(
            "`{}` is not the name of a repository: write OWNER/NAME, with letters, digits, `-`, \
             `_` and `.`",
            text.escape_debug()
        )))
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A repository at a revision, and possibly a kind of its GGUF files:
/// `OWNER/NAME[:QUANT][@REVISION]`, or a link to one of the hub's pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRef {
    /// The repository.
    pub id: RepoId,
    quant: Option<Quant>,
    /// A branch, a tag or a commit, if one is given.
    revision: Option<String>,
}

impl ModelRef {
    /// Creates the name of a repository at its default revision, `main`.
    #[must_use]
    pub fn main(id: RepoId) -> Self {
        Self { id, quant: None, revision: None }
    }

    /// Returns the kind of GGUF file, if one is given.
    #[must_use]
    pub fn quant(&self) -> Option<&Quant> {
        self.quant.as_ref()
    }

    /// Selects a kind of GGUF file.
    #[must_use]
    pub fn with_quant(self, quant: Quant) -> Self {
        Self { quant: Some(quant), ..self }
    }

    /// Returns the revision; `main` if none is given.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// Returns the revision, if one is given.
    #[must_use]
    pub fn named_revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }
}

impl FromStr for ModelRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let link = link::of(text);
        let name = link.map_or(text, |it| it.name);
        let (name, revision) = match name.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (name, link.and_then(|it| it.revision).filter(|it| *it != MAIN)),
        };
        let (id, quant) = match name.split_once(':') {
            // If the text before the colon is not a name, the error reports the whole text.
            Some((id, quant)) if id.parse::<RepoId>().is_ok() => (id, Some(quant.parse()?)),
            _ => (name, link.and_then(|it| it.file).and_then(Quant::of_file)),
        };
        let id = id.parse()?;
        if let Some(revision) = revision {
            let is_short = revision.len() <= REVISION_CHARS_MAX;
            if !is_short || file_path(revision).is_err() {
                return Err(Error::Asked(format!(
                    "`{}` is not a revision: write a branch, a tag or a commit after the @",
                    revision.escape_debug()
                )));
            }
        }
        Ok(Self { id, quant, revision: revision.map(str::to_owned) })
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

/// Returns whether this is a full commit hash.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

/// Returns whether this is a number of `n_digits` lowercase hexadecimal digits, as the hub writes
/// them.
pub(crate) fn is_hex(text: &str, n_digits: usize) -> bool {
    text.len() == n_digits && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the path of a file relative to the folder of its snapshot.
///
/// # Errors
///
/// [`Error::Answer`] if the name could lead out of that folder here or on another system.
pub(crate) fn file_path(name: &str) -> Result<PathBuf> {
    match name.split('/').find_map(problem_of_segment) {
        None => Ok(name.split('/').collect()),
        Some(problem) => {
            Err(Error::Answer(format!("the file name `{}` {problem}", OneLine::name(name))))
        }
    }
}

fn problem_of_segment(segment: &str) -> Option<&'static str> {
    let stem = segment.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let numbered = ["com", "lpt"].iter().find_map(|it| stem.strip_prefix(it));
    let is_device = DEVICES.contains(&stem.as_str())
        || numbered
            .is_some_and(|it| it.chars().count() == 1 && !it.starts_with(char::is_alphabetic));
    if segment.is_empty() || segment == "." || segment == ".." {
        Some("has a part that is empty, `.` or `..`")
    } else if segment.len() > SEGMENT_BYTES_MAX {
        Some("has a part of more than 255 bytes")
    } else if segment.contains(|it: char| it.is_control() || "\\:*?\"<>|".contains(it)) {
        Some("has a character that some systems do not allow in names")
    } else if segment.ends_with(['.', ' ']) || is_device {
        Some("means something else on Windows")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_named_as_the_hub_names_them() {
        for name in ["Qwen/Qwen3-30B-A3B", "gpt2", "a/b.c_d-e", "1/2"] {
            let id: RepoId = name.parse().unwrap();
            assert_eq!(RepoId::of_folder(&id.folder()), Some(id));
        }
        let commit = "0a".repeat(20);
        let dir = Path::new("/x/models--a--b/snapshots").join(&commit);
        assert_eq!(RepoId::of_snapshot(&dir).unwrap().as_str(), "a/b");
        for other in ["models--a--b/snapshots/main", "/", "", "snapshots/x", "a/snapshots/b"] {
            assert_eq!(RepoId::of_snapshot(Path::new(other)), None, "{other}");
        }
        let long = format!("a/{}", "b".repeat(95));
        for name in [
            "", "/", "a/", "/a", "a/b/c", "a b", "..", "a/..", "../a", ".a/b", "a/b.", "a--b/c",
            "a/b--c", "a/b..c", "a/b.git", "a\\b", "a/é", "-a/b", "~/b", "a/b\n", "C:/b", &long,
        ] {
            let error = name.parse::<RepoId>().unwrap_err().to_string();
            assert!(error.contains("OWNER/NAME") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_revision_follows_the_at_sign() {
        let model: ModelRef = "a/b".parse().unwrap();
        assert_eq!((model.revision(), model.named_revision()), ("main", None));
        let model: ModelRef = "a/b@refs/pr/1".parse().unwrap();
        assert_eq!((model.revision(), model.to_string().as_str()), ("refs/pr/1", "a/b@refs/pr/1"));
        for text in ["a/b:Q4_K_M", "a/b:UD-IQ2_M@v1"] {
            let model: ModelRef = text.parse().unwrap();
            assert_eq!(model.to_string(), text);
            assert!(model.quant().is_some());
        }
        for (link, name) in [
            ("https://huggingface.co/a/b/tree/main", "a/b"),
            ("https://huggingface.co/a/b/blob/v1/x/b-UD-Q4_K_M.gguf", "a/b:UD-Q4_K_M@v1"),
            ("hf.co/a/b:Q4_K_M", "a/b:Q4_K_M"),
            ("https://huggingface.co/a/b/resolve/main/config.json?download=true", "a/b"),
        ] {
            assert_eq!(link.parse::<ModelRef>().unwrap().to_string(), name, "{link}");
        }
        for text in [
            "a/b:",
            "a/b:Q4/x",
            "a/b:../x",
            "a/b:Q4_K_M@",
            "https://example.com/a/b",
            "C:/b",
            "https://huggingface.co/",
            "https://huggingface.co/datasets/a/b",
            "hf.co/a/b/tree/../x",
        ] {
            assert!(text.parse::<ModelRef>().is_err(), "{text}");
        }
        for text in ["a/b@", "a/b@../x", "a/b@/x", "a/b@x\\y", "a/b@x@y:z", "@main"] {
            assert!(text.parse::<ModelRef>().is_err(), "{text}");
        }
    }

    #[test]
    fn files_stay_in_their_folder() {
        for name in ["config.json", "sub/dir/x.bin", ".gitattributes", "a b", "ünï", "console.txt"]
        {
            assert_eq!(file_path(name).unwrap(), PathBuf::from(name));
        }
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            "./a",
            "a\\b",
            "..\\x",
            "C:\\x",
            "c:x",
            "a\0b",
            "a\nb",
            "CON",
            "nul.txt",
            "a/Aux.json",
            "COM1",
            "lpt9.x",
            "com\u{b9}",
            "a.",
            "a ",
            "con .txt",
        ] {
            let error = file_path(name).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(file_path(&"x".repeat(256)).is_err());
    }

    #[test]
    fn commits_are_forty_digits() {
        assert!(is_commit(&"0123456789abcdef".repeat(3)[..40]));
        assert!(!is_commit("main"));
        assert!(!is_commit(&"A".repeat(40)));
        assert!(!is_commit(&"a".repeat(41)));
    }
}
