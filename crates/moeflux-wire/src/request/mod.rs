//! A request in one form for all dialects.
//!
//! **Invariant:** every value is within its limits, and every unsupported field was refused. Checks
//! that depend on the model remain: token ids, lengths, and its sampling defaults.

pub(crate) mod fields;
pub(crate) mod text;
pub(crate) mod turns;
pub(crate) mod sampling;
pub(crate) mod thoughts;
pub(crate) mod form;
pub(crate) mod tools;
pub(crate) mod tool_choice;
pub(crate) mod rules;

use moeflux::sample::SamplerConfig;
use moeflux::{StopStrings, TokenId};
use moeflux_chat::{AnswerRules, ChatOptions, Conversation};

use crate::request::fields::Ignored;

/// A client's request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The model's name in the request.
    pub model: Option<String>,
    /// The prompt.
    pub prompt: Prompt,
    /// The number of answers to each prompt.
    pub n_answers: usize,
    /// Maximum number of tokens of an answer; `None` allows as many as fit into the context.
    pub n_tokens_max: Option<usize>,
    /// The constraints on an answer.
    pub rules: AnswerRules,
    /// The path of the field that gave the form in `rules`, for errors in its schema or grammar;
    /// `None` if any text is allowed.
    pub form_field: Option<String>,
    /// The sampling settings.
    pub sampling: Sampling,
    /// Strings that end an answer.
    pub stops: StopStrings,
    /// Whether the prompt precedes the answer, with log-probabilities if these are requested.
    pub is_echoed: bool,
    /// Whether the answer is streamed.
    pub is_streamed: bool,
    /// Fields without effect, for a log line.
    pub ignored: Ignored,
}

/// The input of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, to be rendered by the chat template.
    Chat(Box<Conversation>, ChatOptions),
    /// Texts to be continued as they are; at least one.
    Texts(Vec<PromptText>),
}

/// A text to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// A plain text.
    Text(String),
    /// A plain text that already begins with all special tokens for the model.
    Bare(String),
    /// Token ids, not yet checked against the model.
    Tokens(Vec<TokenId>),
}

impl PromptText {
    /// Omits the tokens that the model expects at the start of every text.
    pub(crate) fn bare(self) -> Self {
        match self {
            Self::Text(text) => Self::Bare(text),
            other => other,
        }
    }
}

/// A client's sampling settings; the model's own apply otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// See [`SamplerConfig::temperature`].
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
    /// Applies these settings over a model's own. The seed of `own` is used if the client gives
    /// none.
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

/// Values that the caller supplies for a response, so that it needs neither a clock nor random
/// numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// A unique id; each dialect adds its own prefix.
    pub id: String,
    /// Seconds since 1970.
    pub created_s: u64,
    /// The actual name of the model.
    pub model: String,
}
