//! Runs Mixture-of-Experts language models that are larger than memory.
//!
//! ```no_run
//! use moeflux::{Engine, Message, Model};
//!
//! let model = Model::open("models/qwen3")?;
//! let text = model.text()?;
//! let engine = Engine::builder(model).memory(24 << 30).load()?;
//! let prompt = text.chat_prompt(&[Message::new("user", "Why is the sky blue?")])?;
//! let mut session = engine.session(4096)?;
//! let answer = text.generation(text.sampling(1), 256)?.answer(&mut session, &prompt)?;
//! println!("{answer}");
//! # Ok::<(), moeflux::Error>(())
//! ```
//!
//! * [`Model::open`] reads the headers of a folder or a GGUF file. [`Engine::builder`] configures
//!   and loads an engine, which holds the weights; [`Memory`] reports how its memory is divided.
//! * A [`Session`] is one sequence of tokens and the model's state after them. [`mod@step`]
//!   computes tokens of many sessions at once, and can pause between layers.
//! * [`ModelText`] converts text to tokens and back. It provides the chat template and the sampling
//!   settings recommended for the model ([`sample`]). A [`Generation`] produces one answer: it
//!   takes logits and chooses the next token.
//! * A [`Device`] computes instead of the CPU; `moeflux-gpu` provides one for GPUs.
//! * [`stats`] holds the statistics of an engine.
//! * An [`Error`] displays as one line; [`Error::fault`] classifies it by its cause.
//!
//! Handles can be sent to other threads. There is no global state: one process can run several
//! engines, each with its own model. Without compiler optimisation, kernels take up to 4.3 MB of
//! stack. In such a build, every computing thread other than the main thread needs 8 MB
//! ([`STACK_BYTES`]).
//!
//! `ARCHITECTURE.md` describes the crate's internal modules; [`provider`] exports the items of them
//! that backends, tools and tests need.
#![forbid(unsafe_code)]

// Types that cannot be mixed up: token, position, layer, expert.
mod ids;
// External failures, in one line each.
mod error;
// Files as tables of contents: `dtype`, `safetensors`, `packed`, `gguf`, `checkpoint`, `sums`.
mod format;
// The geometry of a model: `families`, what is `common` to them, `quantisation`, `gguf`.
mod spec;
// Tensors: `bind` finds them, `load` reads the resident ones; `synthetic` has no files.
mod weights;
// Routed experts as a layer asks for them: in memory, or streamed from drives.
mod experts;
// Rows of tables on drives: `ngrams` names those that a token needs.
mod rows;
// The vocabulary of plans.
mod ops;
// What runs plans: `cpu` with `host`, and the `reference`.
mod backend;
// From a spec to the plans of every layer, a file per block.
mod families;
// Everything that the headers tell before a weight is read.
mod blueprint;
// The packed format: `plan`, `write`, `verify`.
mod pack;
// The machines that run one model together.
mod ranks;
// From a batch of rows to logits, layer by layer.
mod forward;
// From logits to a token, a file per filter.
pub mod sample;
// Text and tokens: `tokenizer`, `template`, `gguf`.
#[cfg(feature = "text")]
mod text;
// How an engine is opened.
mod config;
// How memory is divided.
mod budget;
// The drives of an engine.
mod drives;
// A sequence of tokens: the `rows` of a step, the `runtime` of all sessions, `snapshot`.
mod session;
// One answer, token by token.
#[cfg(feature = "text")]
mod generate;
// All parts of a model that concern text, in one value.
#[cfg(feature = "text")]
mod model_text;
// A model whose headers were read.
mod model;
// The layout of a model for a configuration, agreed on by ranks.
mod opening;
// A loaded model.
mod engine;
// Whether the files of an open model are still the same.
mod unchanged;
// Engines with the defaults of the command.
mod builder;
// What backends, tools and tests need, without a promise of stability.
pub mod provider;

pub use moeflux_threads::STACK_BYTES;

pub use crate::backend::Arithmetic;
pub use crate::budget::{Memory, SessionRoom};
pub use crate::builder::EngineBuilder;
pub use crate::config::{Budget, CONTEXT_DEFAULT, Device, ReadWay};
pub use crate::engine::Engine;
pub use crate::error::{ByteCount, Error, Fault, Need, Remedy, Result};
#[cfg(feature = "text")]
pub use crate::generate::{AnswerTokens, Chosen, Event, Finish, Generated, Generation, Listener};
pub use crate::ids::TokenId;
pub use crate::model::Model;
#[cfg(feature = "text")]
pub use crate::model_text::ModelText;
pub use crate::session::{CopyBooking, LoadFailure, PartsLoad, Session, Snapshot, SnapshotHeader};
#[cfg(feature = "text")]
pub use crate::text::{
    Cancel, ChatTemplate, EndTokens, Message, SpecialTokens, StopStrings, TemplateOptions,
    TextLimit, TextStream, Tokenizer,
};
pub use crate::weights::Progress;

/// Computation of tokens for one or many sessions, step by step. [`Generation`] and schedulers use
/// it.
pub mod step {
    pub use crate::forward::{Logits, StepProgress};
    pub use crate::session::{
        Feed, LongerSteps, N_ROWS_BESIDE, OutputOf, StepOutput, StepUnderWay, Wanted, step,
    };
}

/// Statistics of an engine, for display and for metrics.
pub mod stats {
    pub use moeflux_io::process_memory_bytes;

    pub use crate::backend::{DeviceNames, TierStats};
    pub use crate::experts::predict::Quality;
    pub use crate::experts::stream::StreamStats;
    pub use crate::experts::{LayerExperts, LayerTime, RestStats, StepTimes};
    pub use crate::ranks::LinkStats;
    pub use crate::rows::RowStats;
}

/// Clocks, real and simulated: tests control the time.
pub mod clock {
    pub use moeflux_io::{Clock, RealClock, VirtualClock};
}
