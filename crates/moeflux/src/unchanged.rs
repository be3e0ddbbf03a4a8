//! Whether the files of a model are still those that an engine was opened from.
//!
//! **Invariant:** reads no weights.

use crate::engine::Engine;
use crate::error::Result;
#[cfg(feature = "text")]
use crate::model_text::ModelText;

impl Engine {
    /// Compares the files that experts are read from with what was opened. If all experts are in
    /// memory, nothing is compared.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] that names a file which was written to, replaced or removed.
    pub fn check_files(&self) -> Result<()> {
        if self.stream_stats().is_none() {
            return Ok(());
        }
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// Compares the files that `text` was read from with those of this engine.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Malformed`] if they have other contents now, or belong to another model.
    #[cfg(feature = "text")]
    pub fn check_text(&self, text: &ModelText) -> Result<()> {
        let headers: Vec<u64> = self.files.iter().map(|file| file.header_hash).collect();
        text.check_same(&headers)
    }
}
