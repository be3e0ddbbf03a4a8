//! Checks that the files of a model have not changed since an engine opened them.
//!
//! **Invariant:** reads no weights.

use crate::engine::Engine;
use crate::error::Result;
#[cfg(feature = "text")]
use crate::model_text::ModelText;

impl Engine {
    /// Checks that the files that experts are read from have not changed since they were opened. If
    /// experts are not streamed, nothing is checked.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] that names a file which was modified, replaced or removed.
    pub fn check_files(&self) -> Result<()> {
        if self.stream_stats().is_none() {
            return Ok(());
        }
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// Checks that the files that `text` was read from have not changed and belong to this engine.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] if their contents have changed, or they belong to another model.
    #[cfg(feature = "text")]
    pub fn check_text(&self, text: &ModelText) -> Result<()> {
        let headers: Vec<u64> = self.files.iter().map(|file| file.header_hash).collect();
        text.check_same(&headers)
    }
}
