//! moeflux: Mixture-of-Experts language models that are larger than memory.
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
//! * [`Model::open`] reads the headers of a folder or a GGUF file. [`Engine::builder`] reads its
//!   weights; [`Memory`] says where their bytes went.
//! * A [`Session`] is one timeline of tokens. [`mod@step`] computes tokens of many sessions at
//!   once, and can pause between layers.
//! * [`ModelText`] turns text into tokens and knows how the model wants to be sampled ([`sample`]).
//!   A [`Generation`] is one answer: it takes logits and says which token is next.
//! * A [`Device`] computes in the place of the CPU: `moeflux-gpu` makes one.
//! * [`stats`] tells what an engine did so far.
//! * An [`Error`] is one line for people; [`Error::fault`] says whose it is.
//!
//! Handles may be sent to other threads. Nothing is global: two engines for two models may live in
//! one process. Kernels that are compiled without optimisation take up to 4.3 MB of stack: a thread
//! that computes, other than the first of the process, needs 8 MB in such a build.
//!
//! The crate's own modules are described in `ARCHITECTURE.md`; what backends and tests need of them
//! is in [`provider`].
#![forbid(unsafe_code)]

mod ids;
mod error;
mod format;
mod spec;
mod weights;
mod experts;
mod ops;
mod backend;
mod families;
mod blueprint;
mod pack;
mod ranks;
mod forward;
pub mod sample;
#[cfg(feature = "text")]
mod text;
mod config;
mod budget;
mod session;
#[cfg(feature = "text")]
mod generate;
#[cfg(feature = "text")]
mod model_text;
mod model;
mod opening;
mod engine;
mod unchanged;
mod builder;
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
pub use crate::session::{Session, Snapshot, SnapshotHeader};
#[cfg(feature = "text")]
pub use crate::text::{
    Cancel, ChatTemplate, EndTokens, Message, SpecialTokens, StopStrings, TemplateOptions,
    TextLimit, TextStream, Tokenizer,
};
pub use crate::weights::Progress;

/// Computes tokens of one or many sessions, step by step: what [`Generation`] and schedulers do.
pub mod step {
    pub use crate::forward::{Logits, StepProgress};
    pub use crate::session::{
        Feed, LongerSteps, N_ROWS_BESIDE, OutputOf, StepOutput, StepUnderWay, Wanted, step,
    };
}

/// What an engine did so far, for people and for counters.
pub mod stats {
    pub use moeflux_io::process_memory_bytes;

    pub use crate::backend::{DeviceNames, TierStats};
    pub use crate::experts::RestStats;
    pub use crate::experts::predict::Quality;
    pub use crate::experts::stream::StreamStats;
    pub use crate::ranks::LinkStats;
}

/// Time, which tests can hold.
pub mod clock {
    pub use moeflux_io::{Clock, RealClock, VirtualClock};
}
