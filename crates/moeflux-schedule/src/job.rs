//! What is asked of a scheduler, and what is heard of it.
//!
//! **Invariant:** of each job [`Event::Begun`] comes first, then the scores of its prompt, then the
//! tokens of its answers; each answer ends with [`Event::Finished`], or the whole job with
//! [`Event::Failed`]. Of a job that was cancelled nothing more is heard.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use moeflux::sample::{LogitMask, SamplerConfig};
use moeflux::{Error, Finish, StopStrings, TokenId};

/// The client that a job belongs to. Jobs use sessions of jobs of the same owner only, so that
/// an owner learns nothing of the prompts of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub usize);

/// A prompt and how it is to be answered.
#[derive(Clone, Debug)]
pub struct Job {
    /// The client.
    pub owner: Owner,
    /// What the model reads; at least one token.
    pub prompt: Vec<TokenId>,
    /// Numbers of the prompt's tokens behind which later prompts are likely to go on differently,
    /// so that they need not read what comes before: the end of the instructions, the place where
    /// this answer will stand in the history. In any order; what lies outside is left out.
    pub split_points: Vec<usize>,
    /// Answers; the prompt is read once.
    pub n_answers: usize,
    /// Most tokens of an answer; `None`: as many as the context has room for.
    pub n_tokens_max: Option<usize>,
    /// How tokens are chosen. Each answer adds its number to the seed.
    pub sampling: SamplerConfig,
    /// What ends an answer.
    pub stops: StopStrings,
    /// What binds each answer; `None` if nothing does.
    pub masks: Option<Arc<dyn Masks>>,
    /// Whether the prompt's own tokens are to be scored, with as many others beside each as
    /// [`SamplerConfig::n_logprobs`] says. Such a prompt is read as a whole.
    pub scores_prompt: bool,
}

/// Makes the mask of an answer, on the scheduler's thread: what takes long is done before.
pub trait Masks: Debug + Send + Sync {
    /// A mask for an answer of its own, which has not begun.
    fn mask(&self) -> Box<dyn LogitMask>;
}

/// A mask that has not begun, for an answer that has it alone.
impl<M: LogitMask + Clone + Debug + Sync + 'static> Masks for M {
    fn mask(&self) -> Box<dyn LogitMask> {
        Box::new(self.clone())
    }
}

impl Job {
    /// One answer to a prompt, as long as it comes.
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
}

/// Why a kept session was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// More sessions were kept than may be.
    Count,
    /// Kept sessions had more bytes than they may have.
    Bytes,
    /// Answers needed its memory.
    Answers,
    /// Its memory was worth more as room for experts.
    Experts,
}

/// A conversation that goes on, whose session had been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// Tokens that are read again because of that.
    pub n_tokens: usize,
    /// Why it was dropped.
    pub reason: DropReason,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Count, Self::Bytes, Self::Answers, Self::Experts];

    /// One word for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Answers => "answers",
            Self::Experts => "experts",
        }
    }

    /// The reason as it is told to people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Count => "more sessions than --keep-sessions",
            Self::Bytes => "more bytes than --keep-memory",
            Self::Answers => "answers needed their memory",
            Self::Experts => "experts are worth more in their memory",
        }
    }
}

/// What happens to a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The prompt is being read.
    Begun {
        /// Tokens of the prompt that need no computing.
        n_cached_tokens: usize,
        /// The conversation that the prompt goes on from, if its session was dropped meanwhile.
        missed: Option<Missed>,
    },
    /// The next tokens of the prompt were scored. The first of all has no log-probability.
    PromptScores(Vec<Scored>),
    /// A token of an answer was chosen.
    Token {
        /// Which answer.
        answer_idx: usize,
        /// The token; without a log-probability where none was asked for.
        token: Scored,
        /// More of the answer's text that is certain.
        text: String,
    },
    /// The token that ends an answer was chosen, where log-probabilities were asked for. It is no
    /// token of the answer.
    EndToken {
        /// Which answer.
        answer_idx: usize,
        /// The token.
        token: Scored,
    },
    /// An answer ended.
    Finished {
        /// Which.
        answer_idx: usize,
        /// Why.
        finish: Finish,
        /// The stop string that ended it.
        stopped: Option<String>,
        /// The end of its text, which had been held back.
        rest: String,
        /// How long it took.
        times: Times,
    },
    /// The job failed. If some answers were finished before, they stay so.
    Failed(Error),
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Which.
    pub token: TokenId,
    /// The natural logarithm of its probability under the model's own logits.
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// How long the stages of an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Until its prompt began to be read.
    pub queued: Duration,
    /// From there to the first token.
    pub prompt: Duration,
    /// From there to the last.
    pub answer: Duration,
    /// Bytes that all answers together read from drives meanwhile.
    pub drive_bytes: u64,
}

/// Who hears of a job, on the scheduler's thread: it must not wait for anything.
pub trait Sink: Send {
    /// Something happened.
    fn put(&mut self, event: Event);

    /// Whether it can take more tokens now. Until it can, the job's answers wait, and others have
    /// their places. [`crate::Service::wake`] says that it can again.
    fn is_ready(&self) -> bool {
        true
    }
}

impl Sink for Sender<Event> {
    fn put(&mut self, event: Event) {
        // Nobody has to listen.
        drop(self.send(event));
    }
}

/// How far a job's prompt is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens that are read.
    pub n_done: usize,
    /// Tokens of the prompt.
    pub n_total: usize,
    /// An estimate of the time until all are read, once there is ground for one.
    pub left: Option<Duration>,
}

/// Why a job is not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// So many jobs wait already.
    QueueFull {
        /// How many.
        n_waiting: usize,
        /// An estimate of when the first of them will have begun.
        retry_after: Duration,
    },
    /// The prompt, and the tokens asked for behind it, do not fit into the context.
    TooLong {
        /// Tokens of the prompt.
        n_prompt_tokens: usize,
        /// Tokens asked for.
        n_answer_tokens: usize,
        /// What fits.
        n_context: usize,
    },
    /// No more jobs are taken.
    Closed,
    /// The job cannot be run as it stands.
    Invalid(Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { n_waiting, retry_after } => write!(
                f,
                "{n_waiting} jobs wait already: try again in {} s",
                retry_after.as_secs().max(1)
            ),
            Self::TooLong { n_prompt_tokens, n_answer_tokens, n_context } => write!(
                f,
                "{n_prompt_tokens} tokens and {n_answer_tokens} of an answer do not fit into a \
                 context of {n_context}"
            ),
            Self::Closed => f.write_str("the service takes no more jobs"),
            Self::Invalid(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for Refusal {}
