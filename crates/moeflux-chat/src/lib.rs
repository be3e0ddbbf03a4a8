//! Conversations: through a model's chat template to tokens, and from text back to an answer.
//!
//! * A [`Conversation`] is what programs and servers speak of: turns and tools, in one form for
//!   all sources.
//! * A [`ChatFormat`] is a model's chat template. It turns a conversation into a [`ChatPrompt`]:
//!   tokens, and what the answer begins with.
//! * [`Replays`] have the tokens of earlier answers for a history that comes back.
//! * An [`AnswerReader`] takes the text of an answer as it comes and tells thoughts, text and calls
//!   of tools apart. A [`CallFormat`] says how a model writes calls, a [`ThoughtFormat`] how it
//!   tells thoughts from text.
//! * [`Grammars`] hold an answer to its [`AnswerRules`], by a mask of tokens.
//!
//! **Invariant:** the same conversation gives the same tokens, and how an answer's text is cut into
//! pieces does not change what the reader makes of it. Knows no files, no clock and no threads.
#![forbid(unsafe_code)]

mod conversation;
mod rules;
mod piece;
mod repeats;
mod calls;
mod thoughts;
mod messages;
mod channels;
mod answer;
mod replay;
mod format;
mod grammar;
#[cfg(test)]
mod testing;

pub use answer::{AnswerReader, AnswerStart, HiddenMarkers};
pub use calls::format::CallFormat;
pub use conversation::{Assistant, Call, Conversation, Ending, Tool, ToolKind, ToolResult, Turn};
pub use format::{ChatFormat, ChatOptions, ChatPrompt, OWN_VARIABLES};
pub use grammar::{Constraint, Grammars, Refusal, RulePart};
pub use piece::{Piece, Stage};
pub use replay::{Prepared, PromptKey, Replays, Sampled};
pub use rules::{AnswerForm, AnswerRules, ToolChoice};
pub use thoughts::ThoughtFormat;
