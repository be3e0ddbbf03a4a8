//! Many answers at once over one engine of moeflux.
//!
//! A [`Service`] owns an engine on a thread of its own. A [`Job`] is a prompt with answers to it;
//! whoever submits one gives a [`Sink`] that hears of it, and holds a [`Ticket`]: dropping that
//! gives the job up. Jobs wait in a bounded queue, are admitted as there are sessions and memory,
//! and share the engine's steps. Sessions that have ended are kept for a while, so that a
//! conversation that comes back is read from where it left off.
//!
//! **Invariant:** what an answer is depends on its job alone. Knows no network and no dialect.
#![forbid(unsafe_code)]

mod job;
mod stats;
mod shared;
mod tracked;
mod worth;
mod kept;
mod line;
mod parked;
mod answers;
mod reading;
mod precedence;
mod scores;
mod chunk;
mod scheduler;
mod service;

pub use job::{
    DropReason, Event, Job, Masks, Missed, Owner, Progress, Refusal, Scored, Sink, Times,
};
pub use kept::KeptLimits;
pub use service::{Open, Options, Service, Ticket};
pub use shared::State;
pub use stats::{Histogram, Stats};
