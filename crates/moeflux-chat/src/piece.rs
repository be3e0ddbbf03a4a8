//! The parts of an answer as they become certain, and the reading stage.

/// A part of an answer, as [`crate::AnswerReader`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerPiece {
    /// Part of the thought before the answer.
    Thought(String),
    /// Part of the answer's text.
    Text(String),
    /// A call of an offered tool begins.
    Call {
        /// The tool's [`crate::Tool::name`].
        name: String,
        /// The model's own id for the call, in formats that have one.
        id: Option<String>,
    },
    /// Part of the arguments of the current call. Concatenated up to the end of the call they are
    /// one JSON object; each part ends at a character boundary and not inside an escape.
    Arguments(String),
    /// The arguments of the call are complete.
    CallEnd,
    /// The arguments of the call remain incomplete: the answer was cut there, or the model wrote
    /// something that is not JSON and cannot be repaired without guessing. The call must not be
    /// executed.
    CallCut,
}

/// The stage that the reader of an answer has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStage {
    /// At the start; a thought may still come first.
    Start,
    /// In a thought.
    Thought,
    /// After a thought, with only whitespace since.
    AfterThought,
    /// In the text.
    Text,
    /// In a call, or right after one.
    Call,
    /// Between two messages, or in a message that is not the model's own; none of it is shown.
    Header,
}
