//! Many concurrent answers over one moeflux engine.
//!
//! A [`Service`] owns an engine on its own thread. A [`Job`] is a prompt to answer one or more
//! times. Submitting one takes a [`Sink`] that receives its events and returns a [`Ticket`];
//! dropping the ticket cancels the job. Jobs wait in a bounded queue, are admitted as sessions and
//! memory become free, and share the engine's steps. Ended sessions are kept for a while, so that a
//! continued conversation is read from where it left off.
//!
//! **Invariant:** the text of an answer depends on its job alone. Knows no network and no dialect.
#![forbid(unsafe_code)]

mod job;
mod stats;
mod shared;
mod tracked;
mod session_cache;
mod answers;
mod prefill;
mod scheduler;
mod service;

pub use job::{
    DropReason, Event, Job, Masks, Missed, Owner, Progress, Refusal, Scored, Sink, Times,
};
pub use service::{Open, Options, Service, Ticket};
pub use session_cache::KeptLimits;
pub use shared::State;
pub use stats::{Histogram, Stats};
