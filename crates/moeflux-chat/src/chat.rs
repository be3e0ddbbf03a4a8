//! A model that talks: from a conversation and its rules to a prompt, and from the tokens of an
//! answer back to what was said.
//!
//! **Invariant:** the only place that makes a mask of rules and decides how an answer is read, for
//! every program.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use moeflux::{Error, Model, ModelText, Result, TokenId};

use crate::answer::{KeptAnswer, ReplayPlace};
use crate::answer_reader::{AnswerStart, HiddenMarkers};
use crate::conversation::{Conversation, Tool};
use crate::format::{ChatFormat, ChatPrompt};
use crate::grammar::{Constraint, Grammars, Refusal};
use crate::options::ChatOptions;
use crate::prepared::{PreparedPrompt, Reading};
use crate::replay::{Prepared, Replays};
use crate::rules::{AnswerForm, AnswerRules, ToolChoice};
use crate::thoughts::ThoughtFormat;

/// Bytes for the sampled tokens of earlier answers, unless told otherwise: some hundred answers.
pub const REPLAY_BYTES: usize = 32 << 20;

/// What a model needs to talk: its chat template, grammars, and the tokens of earlier answers. It
/// may be shared by threads.
#[derive(Debug)]
pub struct Chat {
    text: Arc<ModelText>,
    /// `None` for a model that is not made for conversations.
    format: Option<ChatFormat>,
    grammars: Grammars,
    /// By their owners; empty if histories are read as they come.
    replays: Vec<Mutex<Replays>>,
}

/// Why there is no prompt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AskError {
    /// The conversation cannot be told to the model.
    Prompt(Error),
    /// A rule cannot be held.
    Rules(Refusal),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(error) => error.fmt(f),
            Self::Rules(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for AskError {}

impl Chat {
    /// Reads the tokenizer and compiles the chat template of a model.
    ///
    /// # Errors
    ///
    /// As [`Model::text`] and [`ModelText::chat_template`].
    pub fn open(model: &Model) -> Result<Self> {
        Self::of_text(model.text()?)
    }

    /// The same of a text that was read already.
    ///
    /// # Errors
    ///
    /// As [`ModelText::chat_template`].
    pub fn of_text(text: Arc<ModelText>) -> Result<Self> {
        let format = ChatFormat::open(&text)?;
        let grammars = match &format {
            Some(format) => Grammars::of_format(Arc::clone(&text), format),
            None => Grammars::new(Arc::clone(&text), None),
        };
        Ok(Self { text, format, grammars, replays: Vec::new() }.with_replays(REPLAY_BYTES, 1))
    }

    /// The same; the tokens of earlier answers take `n_bytes`, in equal parts for so many owners. 0
    /// bytes: histories are read as they come.
    #[must_use]
    pub fn with_replays(self, n_bytes: usize, n_owners: usize) -> Self {
        let n_owners = if n_bytes == 0 { 0 } else { n_owners };
        let of_owner = |_| Mutex::new(Replays::new(n_bytes / n_owners));
        Self { replays: (0..n_owners).map(of_owner).collect(), ..self }
    }

    /// The same with fewer states of a grammar's lexer: see [`Grammars::with_lexer_states`].
    #[must_use]
    pub fn with_lexer_states(self, n_max: usize) -> Self {
        Self { grammars: self.grammars.with_lexer_states(n_max), ..self }
    }

    /// The model's text.
    #[must_use]
    pub fn text(&self) -> &Arc<ModelText> {
        &self.text
    }

    /// Whether the model is made for conversations.
    #[must_use]
    pub fn has_template(&self) -> bool {
        self.format.is_some()
    }

    /// Whether calls of tools are told apart from text: whether the template writes them in a known
    /// way.
    #[must_use]
    pub fn reads_calls(&self) -> bool {
        self.format.as_ref().is_some_and(|format| format.call_format().is_some())
    }

    /// The prompt of a conversation's next answer, with what the answer needs.
    ///
    /// # Errors
    ///
    /// [`AskError`].
    pub fn ask(
        &self,
        conversation: &Conversation,
        rules: &AnswerRules,
        options: &ChatOptions,
    ) -> std::result::Result<PreparedPrompt, AskError> {
        let format = self.format().map_err(AskError::Prompt)?;
        let prepared = self.prepare(format, conversation, options).map_err(AskError::Prompt)?;
        let tools = rules.callable(&conversation.tools);
        let rules = rules.with_thought_limit(options);
        let (start, thoughts) = (prepared.start, format.thought_format());
        let mask = self.mask(&rules, &tools, start)?;
        let n_replayed = prepared.n_replayed();
        let Prepared { tokens, split_points, key, .. } = prepared;
        let replay = key.map(|key| ReplayPlace { owner: options.owner, key });
        let reading = Arc::new(self.reading(&rules, tools, (start, thoughts)));
        Ok(PreparedPrompt { tokens, split_points, mask, n_replayed, reading, replay })
    }

    /// A text to go on with, as it is: without a template, thoughts and calls.
    ///
    /// # Errors
    ///
    /// Which rule cannot be held.
    pub fn ask_to_continue(
        &self,
        tokens: Vec<TokenId>,
        rules: &AnswerRules,
    ) -> std::result::Result<PreparedPrompt, AskError> {
        let (start, thoughts) = (AnswerStart::Text, ThoughtFormat::usual());
        let mask = self.mask(rules, &[], start)?;
        let reading = Arc::new(self.reading(rules, Vec::new(), (start, thoughts)));
        let (split_points, replay) = (Vec::new(), None);
        Ok(PreparedPrompt { tokens, split_points, mask, n_replayed: 0, reading, replay })
    }

    /// The tokens of a prompt that is not to be answered.
    ///
    /// # Errors
    ///
    /// As [`ChatFormat::prompt`] and [`moeflux::Tokenizer::encode_within`].
    pub fn tokens(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>> {
        Ok(self.prepare(self.format()?, conversation, options)?.tokens)
    }

    /// A conversation as the template writes it.
    ///
    /// # Errors
    ///
    /// As [`ChatFormat::prompt`].
    pub fn render(&self, conversation: &Conversation, options: &ChatOptions) -> Result<ChatPrompt> {
        self.format()?.prompt(conversation, options)
    }

    /// Keeps an answer for the time when it comes back as a part of a history.
    pub fn keep(&self, answer: KeptAnswer) {
        let KeptAnswer { place: ReplayPlace { owner, key }, sampled } = answer;
        if let Some(replays) = self.replays.get(owner) {
            replays.lock().unwrap_or_else(PoisonError::into_inner).keep(key, sampled);
        }
    }

    fn format(&self) -> Result<&ChatFormat> {
        let problem = "this model has no chat template: it continues texts only";
        self.format.as_ref().ok_or_else(|| Error::Unsupported(problem.to_owned()))
    }

    fn prepare(
        &self,
        format: &ChatFormat,
        conversation: &Conversation,
        options: &ChatOptions,
    ) -> Result<Prepared> {
        let kept = self.replays.get(options.owner);
        let lock = || kept.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
        // A copy, which shares the answers: nobody waits while a template is rendered.
        let replays = lock().map(|it| it.clone());
        let tokenizer = self.text.tokenizer();
        let prepared = format.prepare(conversation, options, tokenizer, replays.as_ref())?;
        if let Some(mut replays) = lock().filter(|_| prepared.n_replayed() > 0) {
            replays.used(&prepared);
        }
        Ok(prepared)
    }

    fn mask(
        &self,
        rules: &AnswerRules,
        tools: &[Tool],
        start: AnswerStart,
    ) -> std::result::Result<Option<Arc<Constraint>>, AskError> {
        let constraint = self.grammars.constraint(rules, tools, start);
        Ok(constraint.map_err(AskError::Rules)?.map(Arc::new))
    }

    fn reading(
        &self,
        rules: &AnswerRules,
        tools: Vec<Tool>,
        (start, thoughts): (AnswerStart, &'static ThoughtFormat),
    ) -> Reading {
        let tokenizer = self.text.tokenizer();
        let may_call = !tools.is_empty() && rules.tool_choice != ToolChoice::None;
        let format = self.format.as_ref().and_then(ChatFormat::call_format);
        let calls = format.filter(|_| may_call).map(|format| (format, tools));
        let markers = HiddenMarkers::of(tokenizer, thoughts);
        let markers = match &calls {
            Some((format, _)) => markers.with_calls(tokenizer, format),
            None => markers,
        };
        let n_calls_max = if rules.is_one_call { 1 } else { usize::MAX };
        let has_form = rules.form != AnswerForm::Free;
        Reading { start, thoughts, markers, calls, n_calls_max, has_form }
    }
}
