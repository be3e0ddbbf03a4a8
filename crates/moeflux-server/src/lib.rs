//! The server of moeflux.
//!
//! A [`http::Server`] listens and passes requests to a [`moeflux_schedule::Service`].
//! `moeflux-wire` implements the dialects of clients: it turns bytes into neutral requests, and
//! neutral events into bytes.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! process      metrics of the process
//! metrics      counters for Prometheus
//! machine      counters for the page
//! openapi      the description of the interface
//! http/        the server
//!   config       settings
//!   manager      what a program does with its models for the page
//!   sockets/     listen; slots for connections; half_close: clients that close their side;
//!                stall: clients that read too slowly
//!   reply        responses, and refusals in each dialect
//!   memory/      pools, body_size, estimate: memory is reserved before it is used
//!   body         reads the body of a request
//!   shared       what all requests share
//!   answers/     requests for answers
//!     inbox        events of their jobs
//!     prompt       templates and tokens
//!     record       the line in the log
//!     unlike       the line about prompts that find nothing
//!     run          events of jobs to events of answers
//!     deliver      the response, keep-alives, and the end
//!     generate     all of these, for each dialect
//!   routes/      the table of paths; page: its files; rights: who may manage models; guard: who
//!                is admitted; plain: requests without an engine; machine: its state, again and
//!                again; manage: models; suggestion: paths that do not exist
//!   connections  accepts, counts and ends them
//! ```
#![forbid(unsafe_code)]

mod process;
mod metrics;
mod machine;
mod openapi;
pub mod http;
