//! Many concurrent answers over one moeflux engine.
//!
//! A [`Service`] owns an engine on its own thread. A [`Job`] is a prompt to answer one or more
//! times. Submitting one takes a [`Sink`] that receives its events and returns a [`Ticket`];
//! dropping the ticket cancels the job. Jobs wait in a bounded queue, are admitted as sessions and
//! memory become free, and share the engine's steps. Ended sessions are kept for a while, so that a
//! continued conversation is read from where it left off.
//!
//! ```no_run
//! use std::sync::mpsc::channel;
//!
//! use moeflux::{Engine, Model};
//! use moeflux_schedule::{Event, Job, Options, Service};
//!
//! let model = Model::open("/data/model")?;
//! let text = model.text()?;
//! let prompt = text.prompt("Once upon a time")?;
//! let engine = Engine::builder(model).context(16 * 1024).load()?;
//! let service = Service::of_engine(engine, text.clone(), Options::new(4 * 1024))?;
//! let job = Job { n_tokens_max: Some(64), n_answers: 2, ..Job::new(prompt, text.sampling(1)) };
//! let (sink, events) = channel();
//! let ticket = service.submit(job, Box::new(sink))?;
//! for event in events {
//!     match event {
//!         Event::Token { answer_idx, text, .. } => println!("{answer_idx}: {text}"),
//!         Event::Failed(error) => return Err(error.into()),
//!         _ => {}
//!     }
//! }
//! # drop(ticket);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `moeflux-chat` makes jobs of conversations, and reads their answers.
//!
//! **Invariant:** the text of an answer depends on its job alone. Knows no network and no dialect.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! found            what prompts find in kept and saved conversations
//! job              what is submitted, and the events of it
//! stats            counters
//! shared           what the scheduler's thread and its users both see
//! miss_rows        long prompts in a row that find almost nothing
//! session_cache/   sessions that are kept for prompts that go on from them
//!   worth                    what their memory saves, against that of experts
//!   dropped                  conversations that lost theirs
//! tracked          jobs that have begun
//! saved/           conversations on a drive
//!   object                   what a session is saved as
//!   drive                    the thread that reads and writes
//!   load                     a session that is being loaded
//!   sampled                  tokens of answers
//!   saver                    sessions of programs without a service
//! options          settings of a service
//! answers/         running answers, in one step; decode: one without its session;
//!                  parked: those whose clients take no tokens; sessions: kept, dropped, saved
//! prefill/         a prompt that is being read
//!   precedence               when the oldest goes first
//!   scores                   log-probabilities of its own tokens
//!   marks                    where a long one is saved before the rest is read
//!   chunk                    one step of prompts, and other work between its layers
//! scheduler/       which jobs run, and what is computed next
//!   session_search           the session with most of some tokens
//!   saving                   when sessions are saved on a drive
//!   admission                which job begins
//!   steps                    the next step of prompts
//! service          the thread that owns the engine, and its handles
//! ```
#![forbid(unsafe_code)]

mod found;
mod job;
mod stats;
mod shared;
mod miss_rows;
mod session_cache;
mod tracked;
mod saved;
mod options;
mod answers;
mod prefill;
mod scheduler;
mod service;

pub use found::{MissRow, PromptLookup, PromptOutcome};
pub use job::{
    DropReason, Event, Job, Masks, Missed, Owner, Progress, Refusal, Scored, Sink, Times,
};
pub use options::Options;
pub use saved::sampled::{NewAnswer, SavedAnswer, SavedAnswers, UsedAnswers};
pub use saved::saver::{SavedPrompt, SessionSaver};
pub use saved::{N_TOKENS_SAVED_MIN, OwnerIds, SavedConversations};
pub use service::{Open, Service, Ticket};
pub use session_cache::KeptLimits;
pub use shared::{ExpertsReply, ExpertsReport, State};
pub use stats::{Histogram, Stats};
