//! Names of models, beside the bytes that identify them in namespaces, so that lists show more than
//! hashes.
//!
//! **Invariant:** only lists depend on a name: a file that is missing or damaged is no name.

use twox_hash::XxHash3_128;

use crate::key::PrefixNamespace;

/// The beginning of the files' names.
const MODEL: &str = "model-";

/// The name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// What [`PrefixNamespace::new`] was given.
    identity: Vec<u8>,
    /// What users call it.
    pub name: String,
}

impl ModelName {
    pub(crate) fn new(identity: &[u8], name: &str) -> Self {
        Self { identity: identity.to_vec(), name: name.replace('\n', " ") }
    }

    /// Returns whether the objects of a namespace are the model's.
    #[must_use]
    pub fn is_of(&self, namespace: PrefixNamespace) -> bool {
        PrefixNamespace::new(&self.identity, namespace.owner()) == namespace
    }

    /// Returns the name of the file.
    pub(crate) fn file_name(&self) -> String {
        format!("{MODEL}{:032x}", XxHash3_128::oneshot(&self.identity))
    }

    /// Returns the contents of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [self.name.as_bytes(), b"\n", &self.identity].concat()
    }

    /// Reads a file with this name; `None` if it is another file, or damaged.
    pub(crate) fn parse(file_name: &str, bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().position(|byte| *byte == b'\n')?;
        let name = str::from_utf8(&bytes[..at]).ok()?;
        let found = Self::new(&bytes[at + 1..], name);
        (found.file_name() == file_name).then_some(found)
    }

    /// Whether a file may have the name of a model.
    pub(crate) fn may_be(file_name: &str) -> bool {
        file_name.starts_with(MODEL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::OwnerId;

    #[test]
    fn a_name_is_read_as_it_was_written_and_belongs_to_its_model() {
        let written = ModelName::new(b"a model\nof two lines", "ann/model");
        let (file, bytes) = (written.file_name(), written.to_bytes());
        assert_eq!(ModelName::parse(&file, &bytes).as_ref(), Some(&written));
        for owner in [OwnerId::ANONYMOUS, OwnerId([7; 16])] {
            let identity = b"a model\nof two lines";
            assert!(written.is_of(PrefixNamespace::new(identity, owner)));
            assert!(!written.is_of(PrefixNamespace::new(b"another", owner)));
        }
        for damaged in [&bytes[..bytes.len() - 1], b"", b"no line", b"\xff\n", b"x\ny"] {
            assert_eq!(ModelName::parse(&file, damaged), None);
        }
        assert_eq!(ModelName::parse("model-1", &bytes), None);
        assert_eq!(ModelName::new(b"", "a\nb").name, "a b");
    }
}
