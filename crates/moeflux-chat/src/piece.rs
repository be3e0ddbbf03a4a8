//! The parts of an answer, as they become certain, and how far it has come.

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// Of the thought before the answer.
    Thought(String),
    /// Of the answer itself.
    Text(String),
    /// A call of an offered tool begins.
    Call {
        /// The tool's [`crate::Tool::name`].
        name: String,
        /// How the model itself identifies the call, in formats where it does.
        id: Option<String>,
    },
    /// Of the arguments of the call that began last. Joined up to the end of the call they are one
    /// JSON object; each piece ends behind a whole character and a whole escape.
    Arguments(String),
    /// The arguments of the call are whole.
    CallEnd,
    /// The arguments of the call stay the beginning of an object: the answer was cut there, or what
    /// the model wrote next is no JSON and cannot be repaired without guessing. The call must not
    /// be carried out.
    CallCut,
}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Whether a thought comes first is not known yet.
    Start,
    /// In a thought.
    Thought,
    /// Behind a thought; what came since is blank.
    BehindThought,
    /// In the text.
    Text,
    /// In a call, or right behind one.
    Call,
    /// Between two messages, or in one that is not the model's own: nothing of it is shown.
    Header,
}
