//! A model whose headers were read: what it is, where each of its bytes lies, what it says of text.
//!
//! **Invariant:** [`Model::open`] alone reads headers. What a program makes of a model, its text, a
//! plan or an engine, follows from the same headers; files that change later are refused.

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
    /// of a GGUF file. No weight is read, so that a model of 400 GB opens in well under a second.
    ///
    /// # Errors
    ///
    /// What is wrong with the config, the headers, or the tensors they name;
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

    /// The same model with the tokenizer of a `tokenizer.json` of any name in the place of its own:
    /// for a GGUF file whose tokenizer is not known.
    #[cfg(feature = "text")]
    #[must_use]
    pub fn with_tokenizer(self, file: impl AsRef<Path>) -> Self {
        Self { tokenizer: Some(file.as_ref().to_owned()), text: OnceLock::new(), ..self }
    }

    /// The folder or file that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `model_type` of the config, or `general.architecture` of a GGUF file.
    #[must_use]
    pub fn model_type(&self) -> &str {
        &self.blueprint.model_type
    }

    /// The largest number of tokens that a session can hold.
    #[must_use]
    pub fn context_max(&self) -> usize {
        self.blueprint.spec.context_max
    }

    /// Logits per token: ids of tokens are below this.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.blueprint.spec.vocab
    }

    /// The tokenizer, the tokens that end answers, and how the model's makers want it sampled: read
    /// by the first call, and shared by all.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is malformed, or belongs to another model;
    /// [`Error::UnknownTokenizer`](crate::Error::UnknownTokenizer).
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

/// What headers tell, beyond what programs need.
pub trait Headers {
    /// Shapes and constants.
    fn spec(&self) -> &ModelSpec;

    /// Spec, plans, and where each tensor lies.
    fn blueprint(&self) -> &Blueprint;

    /// The files as a table of contents.
    fn checkpoint(&self) -> &Checkpoint;

    /// Both.
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
