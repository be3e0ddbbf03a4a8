//! A request in one form for all dialects: what is to be generated, and how.
//!
//! **Invariant:** every value is within its limits, and every field that cannot be honoured was
//! refused. What depends on the model is left open: ids of tokens, lengths, its sampling defaults.

use moeflux::sample::SamplerConfig;
use moeflux::{StopStrings, TokenId};
use moeflux_chat::{AnswerRules, ChatOptions, Conversation};

use crate::fields::Ignored;

/// What a client wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The model as the client calls it.
    pub model: Option<String>,
    /// What the model reads.
    pub prompt: Prompt,
    /// Answers to each prompt.
    pub n_answers: usize,
    /// Most tokens of an answer; `None`: as many as the context has room for.
    pub n_tokens_max: Option<usize>,
    /// What an answer is bound to.
    pub rules: AnswerRules,
    /// The path of the field that gave the form of the rules, for what is wrong with its schema or
    /// grammar; `None` if any text will do.
    pub form_field: Option<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// What ends an answer.
    pub stops: StopStrings,
    /// Whether the prompt comes before the answer, with log-probabilities if these are asked for.
    pub is_echoed: bool,
    /// Whether the answer is sent as it comes.
    pub is_streamed: bool,
    /// Fields without effect, for a log line.
    pub ignored: Ignored,
}

/// What the model reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, to be rendered by the chat template.
    Chat(Box<Conversation>, ChatOptions),
    /// Texts to go on with, as they are; at least one.
    Texts(Vec<PromptText>),
}

/// A text to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// In characters.
    Text(String),
    /// In characters that begin with all special tokens which the model is to read.
    Bare(String),
    /// In tokens. Whether the model has these is not known yet.
    Tokens(Vec<TokenId>),
}

impl PromptText {
    /// The same without the tokens that the model wants at the start of every text.
    pub(crate) fn bare(self) -> Self {
        match self {
            Self::Text(text) => Self::Bare(text),
            other => other,
        }
    }
}

/// What a client says about sampling; the rest is the model's own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// As in [`SamplerConfig`], and so are the others.
    pub temperature: Option<f32>,
    /// See [`SamplerConfig::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplerConfig::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplerConfig::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplerConfig::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`SamplerConfig::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`SamplerConfig::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`SamplerConfig::logit_bias`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// See [`SamplerConfig::seed`].
    pub seed: Option<u64>,
    /// See [`SamplerConfig::n_logprobs`].
    pub n_logprobs: Option<usize>,
}

impl Sampling {
    /// These wishes over a model's own. The seed of `own` holds where the client gives none.
    #[must_use]
    pub fn over(&self, own: SamplerConfig) -> SamplerConfig {
        let mut config = own;
        let mut set = |value: Option<f32>, place: fn(&mut SamplerConfig) -> &mut f32| {
            if let Some(value) = value {
                *place(&mut config) = value;
            }
        };
        set(self.temperature, |config| &mut config.temperature);
        set(self.top_p, |config| &mut config.top_p);
        set(self.min_p, |config| &mut config.min_p);
        set(self.repetition_penalty, |config| &mut config.repetition_penalty);
        set(self.frequency_penalty, |config| &mut config.frequency_penalty);
        set(self.presence_penalty, |config| &mut config.presence_penalty);
        config.top_k = self.top_k.unwrap_or(config.top_k);
        config.seed = self.seed.unwrap_or(config.seed);
        config.logit_bias.clone_from(&self.logit_bias);
        config.n_logprobs = self.n_logprobs;
        config
    }
}

/// What the caller gives a response, so that it needs neither a clock nor random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Unique; each dialect puts its own prefix before it.
    pub id: String,
    /// Seconds since 1970.
    pub created_s: u64,
    /// The true name of the model.
    pub model: String,
}
