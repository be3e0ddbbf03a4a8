//! Conversations: from turns through a model's chat template to tokens, and from tokens back to an
//! answer.
//!
//! ```no_run
//! use moeflux::{Engine, Model};
//! use moeflux_chat::{AnswerPart, AnswerRules, Chat, ChatOptions, Conversation, Turn};
//!
//! let model = Model::open("/data/model")?;
//! let chat = Chat::open(&model)?;
//! let engine = Engine::builder(model).load()?;
//! let mut session = engine.session(4096)?;
//! let mut conversation = Conversation::default();
//! for question in ["What is a trait object?", "And what is a slice?"] {
//!     conversation.turns.push(Turn::User(question.into()));
//!     let prompt = chat.ask(&conversation, &AnswerRules::default(), &ChatOptions::default())?;
//!     let mut parts = chat.answer(&prompt, &mut session, (chat.text().sampling(1), 256))?;
//!     for part in &mut parts {
//!         if let AnswerPart::Text(text) = part? {
//!             print!("{text}");
//!         }
//!     }
//!     let answer = parts.finished();
//!     answer.kept.into_iter().for_each(|kept| chat.keep(kept));
//!     conversation.turns.push(Turn::Assistant(answer.said));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * A [`Conversation`] is the form that programs and servers use: turns and tools, whatever their
//!   source. [`AnswerRules`] state the constraints on its next answer.
//! * A [`Chat`] is created once per model. [`Chat::ask`] turns a conversation, rules and
//!   [`ChatOptions`] into a [`PreparedPrompt`]: tokens, a mask that enforces the rules, and the
//!   settings for reading the answer.
//! * An [`Answer`] takes the tokens of an answer as they arrive and returns its [`AnswerPart`]s:
//!   thoughts, text and tool calls. At the end it becomes a [`FinishedAnswer`].
//!   [`Chat::answer`] generates one in a session, and [`Chat::submit`] with a service, which
//!   computes many answers in shared steps.
//!
//! The lower layer consists of a model's chat template ([`ChatFormat`]), the reader of an answer's
//! text ([`AnswerReader`], configured by a [`CallFormat`] and a [`ThoughtFormat`]), and
//! [`Grammars`], which turns rules into masks.
//!
//! **Invariant:** the same conversation gives the same tokens, and the reader's result does not
//! depend on how an answer's text is split into chunks. The crate itself uses no files, no clock
//! and no threads: `moeflux-schedule` saves answers.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! conversation     turns and tools, whatever their source
//! options, rules   what else a prompt and its answer depend on
//! piece            the parts of an answer's text
//! calls/           calls of tools as models write them
//!   format                   the ways to write them, as data
//!   scan, head               looks ahead; finds where a call begins
//!   arguments/               arguments to JSON: json, schema, tagged
//!   envelope, whole          calls in JSON that is complete, or the whole answer
//!   reader                   finds calls while text arrives
//!   history                  calls in the form that templates take
//! thoughts         the ways to write thoughts, as data
//! answer_reader/   thoughts, text and calls of an answer
//!   repeats                  ends an answer that repeats a call
//!   channels/                answers in harmony
//! content          an answer's content as bytes
//! replay           sampled tokens of earlier answers
//! format/          a conversation to its prompt
//!   messages                 turns as templates expect them
//!   parts                    where later prompts diverge
//!   prepare                  tokens, with those of earlier answers
//!   thoughts                 how a template ends a thought
//! grammar/         rules to a mask of tokens
//!   schema/                  JSON Schema to what llguidance enforces: pattern, keywords,
//!                            multiples, growth
//!   lark, calls              grammars of clients; of calls
//!   vocabulary, marker, problems, model
//!                            what is built once for a model
//!   body, constraint         the state of one answer, after its thoughts, and including them
//! answer           tokens to parts of an answer
//! prepared         a prompt with all that its answers need
//! chat             the interface of a model
//! stream           an answer as an iterator, for one session
//! submitted        the same for a service
//! ```
#![forbid(unsafe_code)]

mod conversation;
mod options;
mod rules;
mod piece;
mod calls;
mod thoughts;
mod answer_reader;
mod content;
mod replay;
mod format;
mod grammar;
mod answer;
mod prepared;
mod chat;
mod stream;
mod submitted;
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
pub use submitted::SubmittedAnswer;
pub use thoughts::ThoughtFormat;

/// The program in README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
