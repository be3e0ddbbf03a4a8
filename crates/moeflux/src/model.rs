//! A model whose headers have been read: its kind, the location of each byte, its text files.
//!
//! **Invariant:** only [`Model::open`] reads headers. A model's text, plans and engines all follow
//! from the same headers. Files that change later are refused.

use std::path::{Path, PathBuf};
#[cfg(feature = "text")]
use std::sync::{Arc, OnceLock};

use crate::blueprint::Blueprint;
use crate::error::Result;
use crate::format::{Checkpoint, PackSums};
#[cfg(feature = "text")]
use crate::model_text::ModelText;
use crate::spec::ModelSpec;

/// A model before its weights are read.
///
/// ```no_run
/// let model = moeflux::Model::open("models/qwen3")?;
/// println!("up to {} tokens", model.context_max());
/// let engine = moeflux::Engine::builder(model).memory(24 << 30).load()?;
/// # Ok::<(), moeflux::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    path: PathBuf,
    blueprint: Blueprint,
    checkpoint: Checkpoint,
    #[cfg(feature = "text")]
    tokenizer: Option<PathBuf>,
    #[cfg(feature = "text")]
    text: OnceLock<Arc<ModelText>>,
}

impl Model {
    /// Reads the headers of a folder with `config.json` and `*.safetensors`, of a packed folder, or
    /// of a GGUF file. No weight is read, so a model of 400 GB opens in well under a second.
    ///
    /// # Errors
    ///
    /// If the config, the headers, or the tensors they name are invalid;
    /// [`Error::Altered`](crate::Error::Altered) if files of a pack do not belong together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let sums = PackSums::load(path)?;
        if let Some(sums) = &sums {
            let checked = sums.check_documents(path);
            checked.map_err(|error| Blueprint::unfinished(path).unwrap_or(error))?;
        }
        let (blueprint, checkpoint) = Blueprint::read(path)?;
        if let Some(sums) = &sums {
            sums.check_weights(&checkpoint)?;
        }
        Ok(Self {
            path: path.to_owned(),
            blueprint,
            checkpoint,
            #[cfg(feature = "text")]
            tokenizer: None,
            #[cfg(feature = "text")]
            text: OnceLock::new(),
        })
    }

    /// Replaces the model's tokenizer by that of a file in the format of `tokenizer.json`, for
    /// instance for a GGUF file with an unsupported tokenizer.
    #[cfg(feature = "text")]
    #[must_use]
    pub fn with_tokenizer(self, file: impl AsRef<Path>) -> Self {
        Self { tokenizer: Some(file.as_ref().to_owned()), text: OnceLock::new(), ..self }
    }

    /// Returns the folder or file that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `model_type` of the config, or `general.architecture` of a GGUF file.
    #[must_use]
    pub fn model_type(&self) -> &str {
        &self.blueprint.model_type
    }

    /// Returns the maximum number of tokens of a session.
    #[must_use]
    pub fn context_max(&self) -> usize {
        self.blueprint.spec.context_max
    }

    /// Returns the number of logits per token. Token ids are smaller.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.blueprint.spec.vocab
    }

    /// Returns the model's tokenizer, its end tokens, and its recommended sampling settings. The
    /// first call reads them; all calls share them.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, is malformed, or belongs to another model;
    /// [`Error::UnknownTokenizer`](crate::Error::UnknownTokenizer) if the tokenizer is not
    /// supported.
    #[cfg(feature = "text")]
    pub fn text(&self) -> Result<Arc<ModelText>> {
        if let Some(text) = self.text.get() {
            return Ok(Arc::clone(text));
        }
        let tokenizer = self.tokenizer.as_deref();
        let text = ModelText::read(&self.path, Some(&self.checkpoint), tokenizer, self.vocab())?;
        Ok(Arc::clone(self.text.get_or_init(|| Arc::new(text))))
    }
}

#[cfg(test)]
impl Model {
    /// Returns the model with a changed blueprint.
    pub(crate) fn changed(mut self, change: impl FnOnce(&mut Blueprint, &Checkpoint)) -> Self {
        change(&mut self.blueprint, &self.checkpoint);
        self
    }
}

/// Details of a model that programs do not need.
pub trait Headers {
    /// Returns shapes and constants.
    fn spec(&self) -> &ModelSpec;

    /// Returns the spec, the plans, and the location of each tensor.
    fn blueprint(&self) -> &Blueprint;

    /// Returns the files with their headers.
    fn checkpoint(&self) -> &Checkpoint;

    /// Returns blueprint and checkpoint.
    fn into_parts(self) -> (Blueprint, Checkpoint);
}

impl Headers for Model {
    fn spec(&self) -> &ModelSpec {
        &self.blueprint.spec
    }

    fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    fn into_parts(self) -> (Blueprint, Checkpoint) {
        (self.blueprint, self.checkpoint)
    }
}
