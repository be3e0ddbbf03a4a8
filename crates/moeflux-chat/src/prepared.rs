//! A prompt in tokens, with everything that its answers need: their constraints, the settings of
//! their reader, and the key under which they are kept.
//!
//! **Invariant:** every answer to a prompt is read in the same way, whether one or several are
//! generated.

use std::sync::Arc;

use moeflux::TokenId;
use moeflux::sample::SamplerConfig;
use moeflux_schedule::{Job, Masks};

use crate::answer::{Answer, ReplayKey};
use crate::answer_reader::{AnswerReader, AnswerStart, HiddenMarkers};
use crate::calls::format::CallFormat;
use crate::conversation::Tool;
use crate::grammar::Constraint;
use crate::thoughts::ThoughtFormat;

/// A prompt that is ready to run.
#[derive(Clone, Debug)]
pub struct PreparedPrompt {
    /// The tokens of the prompt.
    pub tokens: Vec<TokenId>,
    /// Token offsets at which later prompts are likely to diverge.
    pub split_points: Vec<usize>,
    /// The constraint on each answer, at its start; `None` if there is none.
    pub mask: Option<Arc<Constraint>>,
    /// Earlier answers whose sampled tokens are part of the prompt.
    pub n_replayed: usize,
    /// The number in the id of the first call, which no call of the conversation has.
    pub(crate) first_call_number: usize,
    pub(crate) reader_settings: Arc<ReaderSettings>,
    pub(crate) replay: Option<ReplayKey>,
}

/// The settings for reading answers.
#[derive(Clone, Debug)]
pub(crate) struct ReaderSettings {
    pub(crate) start: AnswerStart,
    pub(crate) thoughts: &'static ThoughtFormat,
    pub(crate) markers: HiddenMarkers,
    /// The call format and the callable tools; `None` if no calls are read.
    pub(crate) calls: Option<(&'static CallFormat, Vec<Tool>)>,
    pub(crate) n_calls_max: usize,
    /// Whether the text has to be JSON or follow a grammar.
    pub(crate) has_form: bool,
}

impl ReaderSettings {
    pub(crate) fn reader(&self) -> AnswerReader {
        let reader = AnswerReader::new(self.start, self.thoughts);
        let Some((format, tools)) = &self.calls else { return reader };
        let reader = reader.with_calls(format, tools).with_calls_max(self.n_calls_max);
        if self.has_form { reader.with_json_text() } else { reader }
    }
}

impl PreparedPrompt {
    /// Creates an answer to this prompt. The ids of its calls are `call_N`, and differ from those
    /// in the conversation.
    #[must_use]
    pub fn answer(&self) -> Answer {
        self.answer_with_ids("call").with_calls_from(self.first_call_number)
    }

    /// Creates an answer to this prompt. The ids of its calls are `call_stem`, an underscore and a
    /// number that counts from 0, for servers, whose ids are unique among all conversations.
    #[must_use]
    pub fn answer_with_ids(&self, call_stem: &str) -> Answer {
        let answer =
            Answer::new(self.reader_settings.reader(), self.reader_settings.markers, call_stem);
        answer.kept_at(self.replay.clone())
    }

    /// Creates a job for a [`moeflux_schedule::Service`]: one answer of unlimited length, under the
    /// prompt's rules. [`crate::Chat::submit`] does that and reads the answer too.
    #[must_use]
    pub fn job(&self, sampling: SamplerConfig) -> Job {
        self.clone().take_job(sampling)
    }

    /// Like [`PreparedPrompt::job`], but moves tokens, split points and the mask into the job. What
    /// remains serves to read answers.
    pub fn take_job(&mut self, sampling: SamplerConfig) -> Job {
        Job {
            split_points: std::mem::take(&mut self.split_points),
            masks: self.mask.take().map(|mask| mask as Arc<dyn Masks>),
            ..Job::new(std::mem::take(&mut self.tokens), sampling)
        }
    }

    /// Returns the state in which the answers begin.
    #[must_use]
    pub fn start(&self) -> AnswerStart {
        self.reader_settings.start
    }

    /// Replaces the tokens by those of another text whose answers follow the same rules.
    #[must_use]
    pub fn with_tokens(&self, tokens: Vec<TokenId>) -> Self {
        Self { tokens, split_points: Vec::new(), n_replayed: 0, replay: None, ..self.clone() }
    }
}
