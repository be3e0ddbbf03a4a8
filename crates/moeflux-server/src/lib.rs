//! The server of moeflux.
//!
//! [`wire`] turns the bytes of a request into a neutral [`wire::Request`], and neutral
//! [`wire::Event`]s into the bytes of the answer, for each dialect that clients speak. It performs
//! no I/O and reads no clock: ids and times come from the caller. [`http`] is the server itself: a
//! [`http::Server`] listens, and hands what is asked to a [`moeflux_schedule::Service`].
#![forbid(unsafe_code)]

pub mod wire;
mod process;
mod metrics;
mod openapi;
pub mod http;
