//! What a model's folder says about text, in one value, so that no program has to assemble it.
//!
//! **Invariant:** every token that ends an answer is in the model's vocabulary. Knows no weights.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::generate::Generation;
use crate::ids::TokenId;
use crate::sample::{Sampler, SamplerConfig, SamplerDefaults};
use crate::text::{ChatTemplate, EndTokens, Message, TemplateOptions, Tokenizer};

/// A model's tokenizer, the tokens that end its answers, and how its makers want it sampled.
#[derive(Debug)]
pub struct ModelText {
    dir: PathBuf,
    tokenizer: Tokenizer,
    end_tokens: EndTokens,
    sampling: SamplerDefaults,
    vocab: usize,
}

impl ModelText {
    /// Reads the files beside the weights of a model with `vocab` logits per token.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is malformed, or belongs to another model.
    pub fn open(dir: &Path, vocab: usize) -> Result<Self> {
        let tokenizer = Tokenizer::open(dir, vocab)?;
        let end_tokens = EndTokens::open(dir, &tokenizer)?;
        check_end_tokens(dir, &end_tokens, vocab)?;
        let sampling = SamplerDefaults::open(dir)?;
        Ok(Self { dir: dir.to_owned(), tokenizer, end_tokens, sampling, vocab })
    }

    /// Text to tokens and back.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Logits per token: ids of tokens are below this.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The tokens that end an answer, ascending: a mask that wants an end leaves only these.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        self.end_tokens.tokens()
    }

    /// How the model's makers want it sampled. The same seed gives the same answer.
    #[must_use]
    pub fn sampling(&self, seed: u64) -> SamplerConfig {
        self.sampling.config(seed)
    }

    /// The format of conversations, if the model has one.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a template that cannot be compiled.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        ChatTemplate::open(&self.dir)
    }

    /// The tokens of a text to be continued.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode_prompt`].
    pub fn prompt(&self, text: &str) -> Result<Vec<TokenId>> {
        self.tokenizer.encode_prompt(text)
    }

    /// The tokens of a conversation, up to the start of the assistant's next turn.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a model without a chat template; what rendering reports.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<TokenId>> {
        self.chat_prompt_with(messages, &TemplateOptions::default())
    }

    /// The same; the template is told more than the messages. It is always asked for the start of
    /// the assistant's turn.
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
            let problem = format!("{} has no chat template", self.dir.display());
            return Err(Error::Unsupported(problem));
        };
        let options = TemplateOptions { add_generation_prompt: true, ..options.clone() };
        self.tokenizer.encode(&template.render(messages, &options)?)
    }

    /// An answer of at most `n_tokens_max` tokens, which ends where the model ends it.
    ///
    /// # Errors
    ///
    /// A value of `sampling` that is out of its range, or a bias on a token outside of the
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

fn check_end_tokens(dir: &Path, end_tokens: &EndTokens, vocab: usize) -> Result<()> {
    match end_tokens.tokens().iter().find(|token| token.0 as usize >= vocab) {
        None => Ok(()),
        Some(token) => Err(Error::malformed(
            dir,
            format!(
                "`eos_token_id` in config.json or generation_config.json names token {}, and the \
                 vocabulary has {vocab}",
                token.0
            ),
        )),
    }
}
