//! Writes the checksums of a checkpoint's files to a file beside them.
//!
//! **Invariant:** the file gets its name only when it is complete.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use moeflux::provider::format::SumsDocument;
use moeflux::{Error, Result};
use moeflux_io::create_file;

use crate::system::out_file::OutFile;

/// A checksum file that is being written. It is created before the checkpoint is read, so that an
/// unusable path is refused at once.
#[derive(Debug)]
pub(super) struct ChecksumFile {
    out: OutFile,
    file: File,
}

impl ChecksumFile {
    /// Creates the file for this path, under a temporary name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the path cannot be examined, [`Error::Input`] if the file cannot be
    /// created.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let out = OutFile::new(path)?;
        let file = create_file(out.path()).map_err(|source| {
            Error::Input(format!(
                "cannot write checksums to {}: {source}; --sums FILE puts them elsewhere",
                path.display()
            ))
        })?;
        Ok(Self { out, file })
    }

    /// Writes the sums, completely or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be written or renamed.
    pub(super) fn finish(self, sums: &SumsDocument) -> Result<()> {
        let Self { out, mut file } = self;
        let text = format!("{}\n", sums.to_json());
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(Error::io("write", out.path()))?;
        drop(file);
        out.finish()
    }
}

/// Returns the last component of a path; an empty name if there is none.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use moeflux::provider::format::{FileSums, SUMS_FILE_NAME};
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn written_sums_load_again_and_unfinished_files_are_removed() {
        let tensors = BTreeMap::from([("a \"quoted\"".to_owned(), vec![0, u64::MAX])]);
        let file = FileSums { len_bytes: 77, header: 5, tensors };
        let sums = SumsDocument { files: BTreeMap::from([("model.safetensors".to_owned(), file)]) };
        let dir = TempDir::new();
        let path = dir.path().join(SUMS_FILE_NAME);
        assert_eq!(SumsDocument::load(&path).unwrap(), None);
        ChecksumFile::begin(&path).unwrap().finish(&sums).unwrap();
        assert_eq!(SumsDocument::load(&path).unwrap(), Some(sums));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        SumsDocument::load(dir.path()).unwrap_err();
        drop(ChecksumFile::begin(&dir.path().join("other")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = ChecksumFile::begin(&dir.path().join("no/where")).unwrap_err().to_string();
        assert!(error.contains("--sums FILE"), "{error}");
    }
}
