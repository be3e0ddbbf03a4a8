//! Everything that a model's folder or GGUF file says about text, in one value, so that programs
//! need not assemble it.
//!
//! **Invariant:** every token that ends an answer is in the model's vocabulary. This module is
//! independent of weights.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::{Checkpoint, Metadata, PACK_METADATA, PackSums, gguf_at};
use crate::generate::Generation;
use crate::ids::TokenId;
use crate::sample::{Sampler, SamplerConfig, SamplerDefaults};
use crate::text::{
    ChatTemplate, EndTokens, Message, SpecialTokens, TemplateOptions, TextLimit, Tokenizer,
    gguf_generation_config, gguf_templates, text_fingerprint,
};

/// A model's tokenizer, its end tokens, and its recommended sampling settings.
#[derive(Debug)]
pub struct ModelText {
    /// The folder or file.
    path: PathBuf,
    templates: Templates,
    tokenizer: Tokenizer,
    end_tokens: EndTokens,
    sampling: SamplerDefaults,
    vocab: usize,
    origin: TextOrigin,
}

/// The source of the text; used to detect later changes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TextOrigin {
    /// Files of a folder with a hash of their contents, and the tokenizer that replaces the
    /// folder's own.
    Files { fingerprint: u64, tokenizer: Option<PathBuf> },
    /// A GGUF file whose header has this hash.
    Header(u64),
    /// Metadata supplied by the caller.
    Metadata,
}

/// Location of the chat template, which is compiled on request.
#[derive(Debug)]
enum Templates {
    InFolder,
    /// Names and sources.
    Here(Vec<(String, String)>),
}

impl ModelText {
    /// Reads the files next to the weights of a model with `vocab` logits per token, or the
    /// metadata of a GGUF file. For folders without weights; [`Model::text`](crate::Model::text)
    /// reads the text of an open model.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, is malformed, or belongs to another model; [`Error::Altered`] if a
    /// file of a pack was changed; [`Error::UnknownTokenizer`] if the tokenizer is not supported.
    pub fn open(path: &Path, vocab: usize) -> Result<Self> {
        if let Some(sums) = PackSums::load(path)? {
            sums.check_documents(path)?;
        }
        let is_gguf = gguf_at(path)?.is_some() || path.join(PACK_METADATA).exists();
        let checkpoint = is_gguf.then(|| Checkpoint::open(path)).transpose()?;
        Self::read(path, checkpoint.as_ref(), None, vocab)
    }

    /// As [`Self::open`], from headers that have already been read. `tokenizer`, a file in the
    /// format of `tokenizer.json`, replaces the model's own tokenizer.
    pub(crate) fn read(
        path: &Path,
        checkpoint: Option<&Checkpoint>,
        tokenizer: Option<&Path>,
        vocab: usize,
    ) -> Result<Self> {
        if let Some(sums) = PackSums::load(path)? {
            sums.check_documents(path)?;
        }
        let gguf = checkpoint.and_then(|it| Some((it.gguf.as_ref()?, &it.files)));
        let Some((gguf, files)) = gguf else {
            return Self::of_folder(path, tokenizer, vocab);
        };
        let text = Self::of_gguf(&gguf.path, &gguf.metadata, tokenizer, vocab)?;
        let header = files.iter().find(|file| file.path == gguf.path);
        Ok(Self {
            origin: header.map_or(TextOrigin::Metadata, |it| TextOrigin::Header(it.header_hash)),
            ..text
        })
    }

    /// Fails if the files that this was read from have changed. `headers` are the hashes of the
    /// headers of a model's files.
    pub(crate) fn check_same(&self, headers: &[u64]) -> Result<()> {
        let is_same = match &self.origin {
            TextOrigin::Files { fingerprint, tokenizer } => {
                text_fingerprint(&self.path, tokenizer.as_deref())? == *fingerprint
            }
            TextOrigin::Header(hash) => headers.contains(hash),
            TextOrigin::Metadata => true,
        };
        if is_same {
            return Ok(());
        }
        let problem = "its tokenizer, chat template or config has changed since it was opened: \
                       restart the program to use the new files";
        Err(Error::malformed(&self.path, problem))
    }

    /// Returns a hash of the files that this was read from; 0 for metadata of the caller.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        match &self.origin {
            TextOrigin::Files { fingerprint: hash, .. } | TextOrigin::Header(hash) => *hash,
            TextOrigin::Metadata => 0,
        }
    }

    fn of_folder(dir: &Path, tokenizer: Option<&Path>, vocab: usize) -> Result<Self> {
        let fingerprint = text_fingerprint(dir, tokenizer)?;
        let origin = TextOrigin::Files { fingerprint, tokenizer: tokenizer.map(Path::to_owned) };
        let tokenizer = match tokenizer {
            Some(json) => Tokenizer::open_file(json, SpecialTokens::open(dir)?, vocab)?,
            None => Tokenizer::open(dir, vocab)?,
        };
        let end_tokens = EndTokens::open(dir, &tokenizer)?;
        let source = "`eos_token_id` in config.json or generation_config.json";
        check_end_tokens(dir, source, &end_tokens, vocab)?;
        let sampling = SamplerDefaults::open(dir)?;
        let (path, templates) = (dir.to_owned(), Templates::InFolder);
        Ok(Self { path, templates, tokenizer, end_tokens, sampling, vocab, origin })
    }

    /// Reads the metadata of the GGUF file at `path`. A `tokenizer.json` replaces the file's own
    /// tokenizer if it is given, or if it lies next to a file whose tokenizer is not supported.
    pub(crate) fn of_gguf(
        path: &Path,
        metadata: &Metadata,
        tokenizer: Option<&Path>,
        vocab: usize,
    ) -> Result<Self> {
        let of_json = |json: &Path| {
            Tokenizer::open_file(json, SpecialTokens::of_gguf(path, metadata)?, vocab)
        };
        let beside = path.with_file_name("tokenizer.json");
        let tokenizer = match tokenizer {
            Some(json) => of_json(json)?,
            None => match Tokenizer::of_gguf(path, metadata, vocab) {
                Err(Error::UnknownTokenizer { .. }) if beside.exists() => of_json(&beside)?,
                read => read?,
            },
        };
        let end_tokens = EndTokens::of_gguf(path, metadata)?;
        check_end_tokens(path, "a key of the tokenizer", &end_tokens, vocab)?;
        let sampling =
            SamplerDefaults::from_values(path, &gguf_generation_config(path, metadata)?)?;
        let templates = Templates::Here(gguf_templates(path, metadata)?);
        let (path, origin) = (path.to_owned(), TextOrigin::Metadata);
        Ok(Self { path, templates, tokenizer, end_tokens, sampling, vocab, origin })
    }

    /// Returns the tokenizer, which converts text to tokens and back.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the number of logits per token. Token ids are smaller.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the tokens that end an answer, in ascending order. A mask that forces the end allows
    /// only these.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        self.end_tokens.tokens()
    }

    /// Returns the recommended sampling settings. The same seed gives the same answer.
    #[must_use]
    pub fn sampling(&self, seed: u64) -> SamplerConfig {
        self.sampling.config(seed)
    }

    /// Returns the chat template, if the model has one.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or a template cannot be compiled.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        match &self.templates {
            Templates::InFolder => ChatTemplate::open(&self.path),
            Templates::Here(sources) if sources.is_empty() => Ok(None),
            Templates::Here(sources) => {
                let special = self.tokenizer.special_tokens().clone();
                ChatTemplate::of_sources(&self.path, sources.clone(), special).map(Some)
            }
        }
    }

    /// Encodes a text that the model is to continue.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode_prompt`].
    pub fn prompt(&self, text: &str) -> Result<Vec<TokenId>> {
        self.tokenizer.encode_prompt(text)
    }

    /// As [`ModelText::prompt`], within a limit.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode_within`].
    pub fn prompt_within(&self, text: &str, limit: &TextLimit) -> Result<Vec<TokenId>> {
        self.tokenizer.encode_prompt_within(text, limit)
    }

    /// Encodes a conversation, up to the start of the assistant's next turn.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the model has no chat template; [`Error::Input`] if there are no
    /// messages; errors of rendering.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<TokenId>> {
        self.chat_prompt_with(messages, &TemplateOptions::default())
    }

    /// As [`ModelText::chat_prompt`], with further values for the template. The start of the
    /// assistant's turn is always requested.
    ///
    /// # Errors
    ///
    /// As [`ModelText::chat_prompt`].
    pub fn chat_prompt_with(
        &self,
        messages: &[Message],
        options: &TemplateOptions,
    ) -> Result<Vec<TokenId>> {
        let Some(template) = self.chat_template()? else {
            let problem = format!("{} has no chat template", self.path.display());
            return Err(Error::Unsupported(problem));
        };
        if messages.is_empty() {
            return Err(Error::Input("the conversation has no messages".to_owned()));
        }
        let options = TemplateOptions { add_generation_prompt: true, ..options.clone() };
        self.tokenizer.encode(&template.render(messages, &options)?)
    }

    /// Creates a generation of at most `n_tokens_max` tokens, which ends at an end token.
    ///
    /// # Errors
    ///
    /// If a value of `sampling` is out of range, or a bias applies to a token outside of the
    /// vocabulary.
    pub fn generation(
        &self,
        sampling: SamplerConfig,
        n_tokens_max: usize,
    ) -> Result<Generation<'_>> {
        let sampler = Sampler::new(sampling, self.vocab)?;
        Ok(Generation::new(sampler, &self.tokenizer, &self.end_tokens, n_tokens_max))
    }
}

fn check_end_tokens(path: &Path, source: &str, end_tokens: &EndTokens, vocab: usize) -> Result<()> {
    match end_tokens.tokens().iter().find(|token| token.0 as usize >= vocab) {
        None => Ok(()),
        Some(token) => Err(Error::malformed(
            path,
            format!("{source} names token {}, but the vocabulary has only {vocab} tokens", token.0),
        )),
    }
}
