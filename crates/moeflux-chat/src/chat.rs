//! The chat interface of a model: from a conversation and its rules to a prompt, and from the
//! tokens of an answer back to its content.
//!
//! **Invariant:** this is the only place, for every program, that turns rules into a mask and
//! decides how an answer is read.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use moeflux::{Error, Model, ModelText, Result, TokenId};
use moeflux_schedule::{Owner, SavedAnswers, SavedConversations};

use crate::answer::{KeptAnswer, ReplayKey};
use crate::answer_reader::{AnswerStart, HiddenMarkers};
use crate::conversation::{Conversation, Tool};
use crate::format::{ChatFormat, ChatPrompt};
use crate::grammar::{Constraint, Grammars, RuleError};
use crate::options::ChatOptions;
use crate::prepared::{PreparedPrompt, ReaderSettings};
use crate::replay::{ReplayCache, TokenizedPrompt};
use crate::rules::{AnswerForm, AnswerRules, ToolChoice};
use crate::thoughts::ThoughtFormat;

/// Default size in bytes of the cache of earlier answers' sampled tokens: some hundred answers.
pub const REPLAY_BYTES: usize = 32 << 20;

/// The chat interface of a model: its chat template, grammars, and the tokens of earlier answers.
/// Threads may share it.
#[derive(Debug)]
pub struct Chat {
    text: Arc<ModelText>,
    /// `None` for a model without a chat template.
    format: Option<ChatFormat>,
    grammars: Grammars,
    /// One cache for each owner; empty if histories are always tokenized from text.
    replays: Vec<OwnerReplays>,
}

/// The answers of one owner.
#[derive(Debug)]
struct OwnerReplays {
    owner: Owner,
    n_bytes_max: usize,
    /// Where they are saved.
    saved: Option<Arc<SavedAnswers>>,
    /// Read from there when it is used first.
    cache: OnceLock<Mutex<ReplayCache>>,
}

impl OwnerReplays {
    fn lock(&self) -> MutexGuard<'_, ReplayCache> {
        let cache = self.cache.get_or_init(|| {
            Mutex::new(match &self.saved {
                Some(saved) => ReplayCache::of_saved(self.n_bytes_max, saved, self.owner),
                None => ReplayCache::new(self.n_bytes_max),
            })
        });
        cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why [`Chat::ask`] made no prompt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AskError {
    /// The template or the tokenizer rejects the conversation.
    Prompt(Error),
    /// A rule cannot be enforced.
    Rules(RuleError),
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

    /// Like [`Chat::open`], for a text that is already loaded.
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

    /// Limits the tokens of earlier answers to `n_bytes`, divided equally between `n_owners`. With
    /// 0 bytes, histories are always tokenized from text.
    #[must_use]
    pub fn with_replays(self, n_bytes: usize, n_owners: usize) -> Self {
        let n_owners = if n_bytes == 0 { 0 } else { n_owners };
        let of_owner = |owner| OwnerReplays {
            owner: Owner(owner),
            n_bytes_max: n_bytes / n_owners,
            saved: None,
            cache: OnceLock::new(),
        };
        Self { replays: (0..n_owners).map(of_owner).collect(), ..self }
    }

    /// Saves the tokens of answers, so that they replace the text of histories after a restart,
    /// too. Without a store for them, see [`Chat::with_replays`], none are saved.
    ///
    /// # Errors
    ///
    /// As [`SavedAnswers::start`].
    pub fn with_saved(self, saved: SavedConversations) -> Result<Self> {
        let saved = Arc::new(SavedAnswers::start(saved, self.text.fingerprint())?);
        let with = |it: OwnerReplays| OwnerReplays { saved: Some(Arc::clone(&saved)), ..it };
        Ok(Self { replays: self.replays.into_iter().map(with).collect(), ..self })
    }

    /// Limits the states of a grammar's lexer: see [`Grammars::with_lexer_states`].
    #[must_use]
    pub fn with_lexer_states(self, n_max: usize) -> Self {
        Self { grammars: self.grammars.with_lexer_states(n_max), ..self }
    }

    /// Returns the model's text.
    #[must_use]
    pub fn text(&self) -> &Arc<ModelText> {
        &self.text
    }

    /// Returns whether the model has a chat template.
    #[must_use]
    pub fn has_template(&self) -> bool {
        self.format.is_some()
    }

    /// Returns whether tool calls are separated from text, which requires that the template writes
    /// them in a known format.
    #[must_use]
    pub fn reads_calls(&self) -> bool {
        self.format.as_ref().is_some_and(|format| format.call_format().is_some())
    }

    /// Returns whether [`ChatOptions::thinking`] turns the model's thoughts on and off. Renders two
    /// prompts.
    #[must_use]
    pub fn has_thinking_switch(&self) -> bool {
        self.format.as_ref().is_some_and(ChatFormat::has_thinking_switch)
    }

    /// Prepares the prompt for a conversation's next answer.
    ///
    /// # Errors
    ///
    /// [`AskError::Prompt`] if the model has no chat template, or the template or the tokenizer
    /// rejects the conversation; [`AskError::Rules`] if a rule cannot be enforced.
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
        let TokenizedPrompt { tokens, split_points, key, .. } = prepared;
        let owner = options.owner;
        let is_saved = self.replays.get(owner).is_some_and(|it| it.lock().is_saved());
        let prompt = is_saved.then(|| Arc::from(&tokens[..]));
        let replay = key.map(|key| ReplayKey { owner, key, prompt });
        let reader_settings = Arc::new(self.reader_settings(&rules, tools, (start, thoughts)));
        Ok(PreparedPrompt {
            tokens,
            split_points,
            mask,
            n_replayed,
            first_call_number: conversation.first_free_number("call_"),
            reader_settings,
            replay,
        })
    }

    /// Prepares a text to be continued as it is, without a template, thoughts or calls.
    ///
    /// # Errors
    ///
    /// [`AskError::Rules`] with the rule that cannot be enforced.
    pub fn ask_to_continue(
        &self,
        tokens: Vec<TokenId>,
        rules: &AnswerRules,
    ) -> std::result::Result<PreparedPrompt, AskError> {
        let (start, thoughts) = (AnswerStart::Text, ThoughtFormat::usual());
        let mask = self.mask(rules, &[], start)?;
        let reader_settings = Arc::new(self.reader_settings(rules, Vec::new(), (start, thoughts)));
        Ok(PreparedPrompt {
            tokens,
            split_points: Vec::new(),
            mask,
            n_replayed: 0,
            first_call_number: 0,
            reader_settings,
            replay: None,
        })
    }

    /// Returns the tokens of a prompt that will not be answered.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a model without a chat template; otherwise as
    /// [`ChatFormat::prompt`] and [`moeflux::Tokenizer::encode_within`].
    pub fn tokens(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>> {
        Ok(self.prepare(self.format()?, conversation, options)?.tokens)
    }

    /// Renders a conversation with the template.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a model without a chat template; otherwise as
    /// [`ChatFormat::prompt`].
    pub fn render(&self, conversation: &Conversation, options: &ChatOptions) -> Result<ChatPrompt> {
        self.format()?.prompt(conversation, options)
    }

    /// Keeps an answer until it comes back as part of a history.
    pub fn keep(&self, answer: KeptAnswer) {
        let KeptAnswer { replay_key: ReplayKey { owner, key, prompt }, sampled } = answer;
        if let Some(replays) = self.replays.get(owner) {
            replays.lock().keep(key, prompt, sampled);
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
    ) -> Result<TokenizedPrompt> {
        let kept = self.replays.get(options.owner);
        let lock = || kept.map(OwnerReplays::lock);
        // A clone, which shares the answers, so that the lock is not held while a template is
        // rendered.
        let replays = lock().map(|it| it.clone());
        let tokenizer = self.text.tokenizer();
        let prepared = format.prepare(conversation, options, tokenizer, replays.as_ref())?;
        if let Some(mut replays) = lock().filter(|_| prepared.n_replayed() > 0) {
            replays.touch(&prepared);
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

    fn reader_settings(
        &self,
        rules: &AnswerRules,
        tools: Vec<Tool>,
        (start, thoughts): (AnswerStart, &'static ThoughtFormat),
    ) -> ReaderSettings {
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
        ReaderSettings { start, thoughts, markers, calls, n_calls_max, has_form }
    }
}
