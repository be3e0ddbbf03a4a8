//! Jobs for a scheduler, and the events that it reports.
//!
//! **Invariant:** for each job, [`Event::Begun`] comes first, then the scores of its prompt, then
//! the tokens of its answers. Each answer ends with [`Event::Finished`], or the whole job with
//! [`Event::Failed`]. A cancelled job reports nothing more.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use moeflux::sample::{LogitMask, SamplerConfig};
use moeflux::{Error, Finish, ModelText, StopStrings, TokenId};

use crate::found::PromptLookup;

/// The client that a job belongs to. Jobs share sessions only with jobs of the same owner, so that
/// an owner learns nothing about the prompts of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub usize);

/// A prompt and the terms of its answers.
#[derive(Clone, Debug)]
pub struct Job {
    /// The client.
    pub owner: Owner,
    /// The prompt; at least one token.
    pub prompt: Vec<TokenId>,
    /// Token offsets at which later prompts are likely to diverge: the end of the instructions, or
    /// the place where this answer will stand in the history. Later prompts need not read the
    /// tokens before them again. In any order; offsets outside the prompt are ignored.
    pub split_points: Vec<usize>,
    /// Number of answers; the prompt is read once.
    pub n_answers: usize,
    /// Upper bound on the tokens of an answer; `None`: as many as fit into the context.
    pub n_tokens_max: Option<usize>,
    /// How tokens are chosen. Each answer adds its index to the seed.
    pub sampling: SamplerConfig,
    /// Strings that end an answer.
    pub stops: StopStrings,
    /// The constraint on each answer; `None`: unconstrained.
    pub masks: Option<Arc<dyn Masks>>,
    /// Whether to score the prompt's own tokens, with [`SamplerConfig::n_logprobs`] alternatives
    /// beside each. Such a prompt is read completely.
    pub scores_prompt: bool,
}

/// Creates the mask of an answer. Runs on the scheduler's thread: do slow work beforehand.
pub trait Masks: Debug + Send + Sync {
    /// Returns a fresh mask for one answer.
    fn mask(&self) -> Box<dyn LogitMask>;
}

/// Clones a fresh mask for each answer.
impl<M: LogitMask + Clone + Debug + Sync + 'static> Masks for M {
    fn mask(&self) -> Box<dyn LogitMask> {
        Box::new(self.clone())
    }
}

impl Job {
    /// Creates a job with one answer of unlimited length.
    #[must_use]
    pub fn new(prompt: Vec<TokenId>, sampling: SamplerConfig) -> Self {
        Self {
            owner: Owner::default(),
            prompt,
            split_points: Vec::new(),
            n_answers: 1,
            n_tokens_max: None,
            sampling,
            stops: StopStrings::default(),
            masks: None,
            scores_prompt: false,
        }
    }

    /// Refuses jobs that cannot run, so that no error appears only when their turn comes.
    pub(crate) fn check(&self, text: &ModelText, context: usize) -> Result<(), Refusal> {
        let invalid = |problem: String| Err(Refusal::Invalid(Error::Input(problem)));
        let n_prompt_tokens = self.prompt.len();
        if n_prompt_tokens == 0 {
            return invalid("the prompt is empty".to_owned());
        }
        if self.n_answers == 0 {
            return invalid("the number of answers is 0".to_owned());
        }
        // One token is enough: clients often request more than fits, and answers end at the
        // context.
        let n_answer_tokens = self.n_tokens_max.unwrap_or(usize::MAX).min(1);
        if n_prompt_tokens.saturating_add(n_answer_tokens) > context {
            return Err(Refusal::TooLong { n_prompt_tokens, n_answer_tokens, n_context: context });
        }
        let vocab = text.vocab();
        if let Some(at) = self.prompt.iter().position(|token| token.0 as usize >= vocab) {
            let token = self.prompt[at].0;
            return invalid(format!(
                "token {token} at index {at} is not in the vocabulary of {vocab}"
            ));
        }
        let sampling = self.sampling.clone();
        text.generation(sampling, 1).map(drop).map_err(Refusal::Invalid)
    }
}

/// Why a kept session was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// There were more kept sessions than allowed.
    Count,
    /// Kept sessions took more bytes than allowed.
    Bytes,
    /// Answers needed its memory.
    Answers,
    /// Its memory was worth more as room for experts.
    Experts,
}

/// A continued conversation whose session had been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// Tokens that are read again because of that.
    pub n_tokens: usize,
    /// Why it was dropped.
    pub reason: DropReason,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Count, Self::Bytes, Self::Answers, Self::Experts];

    /// Returns one word for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Answers => "answers",
            Self::Experts => "experts",
        }
    }

    /// Returns the reason as text for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Count => "more sessions than may be kept",
            Self::Bytes => "more bytes than may be kept",
            Self::Answers => "running answers needed the memory",
            Self::Experts => "experts make better use of the memory",
        }
    }
}

/// An event of a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The job has begun: its prompt is being read.
    Begun {
        /// Tokens of the prompt that need no computation.
        n_cached_tokens: usize,
        /// The tokens among them that were loaded from a drive; the others were in memory.
        n_cached_drive_tokens: usize,
        /// The conversation that the prompt continues, if its session was dropped.
        missed: Option<Missed>,
        /// How the prompt was looked up; `None` if it is scored and therefore read completely.
        lookup: Option<PromptLookup>,
    },
    /// The next tokens of the prompt were scored. The first token of a prompt has no
    /// log-probability.
    PromptScores(Vec<Scored>),
    /// A token of an answer was chosen.
    Token {
        /// The index of the answer.
        answer_idx: usize,
        /// The token, with a log-probability if requested.
        token: Scored,
        /// The text that became certain with this token.
        text: String,
    },
    /// The token that ends an answer was chosen. Reported only if log-probabilities were requested.
    /// It is not part of the answer.
    EndToken {
        /// The index of the answer.
        answer_idx: usize,
        /// The token.
        token: Scored,
    },
    /// An answer ended.
    Finished {
        /// The index of the answer.
        answer_idx: usize,
        /// Why it ended.
        finish: Finish,
        /// The stop string that ended it.
        stopped: Option<String>,
        /// The end of its text, which had been held back.
        rest: String,
        /// How long it took.
        times: Times,
    },
    /// The job failed. Answers that finished before stay valid.
    Failed(Error),
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: TokenId,
    /// The natural logarithm of its probability under the model's own logits.
    pub logprob: Option<f32>,
    /// The most likely tokens at this position, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// How long the parts of an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From submission until its prompt began to be read.
    pub queued: Duration,
    /// From then to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub answer: Duration,
    /// Bytes that all answers together read from drives since the prompt began.
    pub drive_bytes: u64,
}

/// Receives the events of a job, on the scheduler's thread: it must not block. It is dropped after
/// the job's last event, so the receiver of a channel then ends.
pub trait Sink: Send {
    /// Receives an event.
    fn put(&mut self, event: Event);

    /// Whether it can take more tokens now. Until then, the job's answers wait and others use their
    /// session slots. Call [`crate::Service::wake`] when it can again.
    fn is_ready(&self) -> bool {
        true
    }
}

impl Sink for Sender<Event> {
    fn put(&mut self, event: Event) {
        // A receiver that hung up is no error.
        drop(self.send(event));
    }
}

/// The progress of reading a job's prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens that were read.
    pub n_done: usize,
    /// Tokens of the prompt.
    pub n_total: usize,
    /// An estimate of the time until all are read, as soon as there is a basis for one.
    pub left: Option<Duration>,
}

/// Why a job is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue is full.
    QueueFull {
        /// Jobs that wait.
        n_waiting: usize,
        /// An estimate of when a job will have ended.
        retry_after: Duration,
    },
    /// The prompt and at least one token of an answer do not fit into the context.
    TooLong {
        /// Tokens of the prompt.
        n_prompt_tokens: usize,
        /// One token of an answer, or none if none was requested.
        n_answer_tokens: usize,
        /// Tokens that fit.
        n_context: usize,
    },
    /// The service accepts no more jobs.
    Closed,
    /// The service accepts no jobs until [`Service::resume`](crate::Service::resume).
    Paused,
    /// The job is invalid.
    Invalid(Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { n_waiting, retry_after } => write!(
                f,
                "the queue is full ({n_waiting} jobs): try again in {} s",
                retry_after.as_secs().max(1)
            ),
            Self::TooLong { n_prompt_tokens, n_answer_tokens, n_context } => write!(
                f,
                "{n_prompt_tokens} tokens of the prompt and {n_answer_tokens} of the answer do not \
                 fit into a context of {n_context}"
            ),
            Self::Closed => f.write_str("the service takes no more jobs"),
            Self::Paused => f.write_str("the service takes no jobs for some time: try again"),
            Self::Invalid(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for Refusal {}
