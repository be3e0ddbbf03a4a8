//! A prompt in tokens, with all that its answers need: what they are held to, how they are read,
//! and where they are kept.
//!
//! **Invariant:** every answer to a prompt is read in the same way, alone or in company.

use std::sync::Arc;

use moeflux::TokenId;

use crate::answer::{Answer, ReplayPlace};
use crate::answer_reader::{AnswerReader, AnswerStart, HiddenMarkers};
use crate::calls::format::CallFormat;
use crate::conversation::Tool;
use crate::grammar::Constraint;
use crate::thoughts::ThoughtFormat;

/// A prompt that can be run.
#[derive(Clone, Debug)]
pub struct PreparedPrompt {
    /// What the model reads.
    pub tokens: Vec<TokenId>,
    /// Numbers of tokens behind which later prompts are likely to differ.
    pub split_points: Vec<usize>,
    /// What binds each answer, not begun; `None` if nothing does.
    pub mask: Option<Arc<Constraint>>,
    /// Earlier answers in it that stand there as they were sampled.
    pub n_replayed: usize,
    pub(crate) reading: Arc<Reading>,
    pub(crate) replay: Option<ReplayPlace>,
}

/// How answers are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) start: AnswerStart,
    pub(crate) thoughts: &'static ThoughtFormat,
    pub(crate) markers: HiddenMarkers,
    /// Of the tools that may be called.
    pub(crate) calls: Option<(&'static CallFormat, Vec<Tool>)>,
    pub(crate) n_calls_max: usize,
    /// Whether the text has to be JSON, or follow a grammar.
    pub(crate) has_form: bool,
}

impl Reading {
    pub(crate) fn reader(&self) -> AnswerReader {
        let reader = AnswerReader::new(self.start, self.thoughts);
        let Some((format, tools)) = &self.calls else { return reader };
        let reader = reader.with_calls(format, tools).with_calls_max(self.n_calls_max);
        if self.has_form { reader.with_json_text() } else { reader }
    }
}

impl PreparedPrompt {
    /// An answer to this prompt. The ids of its calls are `call_stem`, an underscore and a number.
    #[must_use]
    pub fn answer(&self, call_stem: &str) -> Answer {
        let answer = Answer::new(self.reading.reader(), self.reading.markers, call_stem);
        answer.kept_at(self.replay.clone())
    }

    /// What the answers begin with.
    #[must_use]
    pub fn start(&self) -> AnswerStart {
        self.reading.start
    }

    /// The same for another text whose answers follow the same rules.
    #[must_use]
    pub fn with_tokens(&self, tokens: Vec<TokenId>) -> Self {
        Self { tokens, split_points: Vec::new(), n_replayed: 0, replay: None, ..self.clone() }
    }
}
