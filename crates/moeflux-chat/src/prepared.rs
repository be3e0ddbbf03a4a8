//! A prompt in tokens, with everything that its answers need: their constraints, the settings of
//! their reader, and the key under which they are kept.
//!
//! **Invariant:** every answer to a prompt is read in the same way, whether one or several are
//! generated.

use std::sync::Arc;

use moeflux::TokenId;

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
    /// Creates an answer to this prompt. The ids of its calls are `call_stem`, an underscore and a
    /// number.
    #[must_use]
    pub fn answer(&self, call_stem: &str) -> Answer {
        let answer =
            Answer::new(self.reader_settings.reader(), self.reader_settings.markers, call_stem);
        answer.kept_at(self.replay.clone())
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
