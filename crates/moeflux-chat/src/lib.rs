//! Conversations: from turns through a model's chat template to tokens, and from tokens back to an
//! answer.
//!
//! * A [`Conversation`] is the form that programs and servers use: turns and tools, whatever their
//!   source. [`AnswerRules`] state the constraints on its next answer.
//! * A [`Chat`] is created once per model. [`Chat::ask`] turns a conversation, rules and
//!   [`ChatOptions`] into a [`PreparedPrompt`]: tokens, a mask that enforces the rules, and the
//!   settings for reading the answer.
//! * An [`Answer`] takes the tokens of an answer as they arrive and returns its [`AnswerPart`]s:
//!   thoughts, text and tool calls. At the end it becomes a [`FinishedAnswer`].
//!
//! The lower layer consists of a model's chat template ([`ChatFormat`]), the reader of an answer's
//! text ([`AnswerReader`], configured by a [`CallFormat`] and a [`ThoughtFormat`]), and
//! [`Grammars`], which turns rules into masks.
//!
//! **Invariant:** the same conversation gives the same tokens, and the reader's result does not
//! depend on how an answer's text is split into chunks. The crate uses no files, no clock and no
//! threads.
#![forbid(unsafe_code)]

mod conversation;
mod options;
mod rules;
mod piece;
mod calls;
mod thoughts;
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
pub use grammar::{Constraint, Grammars, RuleError, RulePart};
pub use options::{ChatOptions, OWN_VARIABLES};
pub use piece::{AnswerPiece, AnswerStage};
pub use prepared::PreparedPrompt;
pub use rules::{AnswerForm, AnswerRules, ToolChoice};
pub use stream::AnswerParts;
pub use thoughts::ThoughtFormat;
