//! Conversations: through a model's chat template to tokens, and from tokens back to an answer.
//!
//! * A [`Conversation`] is what programs and servers speak of: turns and tools, in one form for
//!   all sources. [`AnswerRules`] say what its next answer is bound to.
//! * A [`Chat`] is made once for a model. [`Chat::ask`] makes a [`PreparedPrompt`] of a
//!   conversation, rules and [`ChatOptions`]: tokens, a mask that holds the answer to the rules,
//!   and how the answer is read.
//! * An [`Answer`] takes the tokens of an answer as they come and gives its [`AnswerPart`]s:
//!   thoughts, text, calls of tools. At the end it is a [`FinishedAnswer`].
//!
//! Below these are a model's chat template ([`ChatFormat`]), the reader of an answer's text
//! ([`AnswerReader`], by a [`CallFormat`] and a [`ThoughtFormat`]), and [`Grammars`], which make
//! masks of rules.
//!
//! **Invariant:** the same conversation gives the same tokens, and how an answer's text is cut into
//! pieces does not change what the reader makes of it. Knows no files, no clock and no threads.
#![forbid(unsafe_code)]

mod conversation;
mod options;
mod rules;
mod piece;
mod repeats;
mod calls;
mod thoughts;
mod messages;
mod channels;
mod answer_reader;
mod replay;
mod format;
mod grammar;
mod answer;
mod prepared;
mod chat;
mod stream;
#[cfg(test)]
mod testing;

pub use answer::{Answer, AnswerPart, FinishedAnswer, KeptAnswer};
pub use answer_reader::{AnswerReader, AnswerStart, HiddenMarkers};
pub use calls::format::CallFormat;
pub use chat::{AskError, Chat, REPLAY_BYTES};
pub use conversation::{Assistant, Call, Conversation, Ending, Tool, ToolKind, ToolResult, Turn};
pub use format::{ChatFormat, ChatPrompt};
pub use grammar::{Constraint, Grammars, Refusal, RulePart};
pub use options::{ChatOptions, OWN_VARIABLES};
pub use piece::{Piece, Stage};
pub use prepared::PreparedPrompt;
pub use rules::{AnswerForm, AnswerRules, ToolChoice};
pub use stream::AnswerParts;
pub use thoughts::ThoughtFormat;
