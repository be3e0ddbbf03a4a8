//! The server of moeflux.
//!
//! A [`http::Server`] listens, and hands what is asked to a [`moeflux_schedule::Service`]. The
//! dialects that clients speak are those of `moeflux-wire`: bytes to a neutral request, neutral
//! events to bytes.
#![forbid(unsafe_code)]

mod process;
mod metrics;
mod openapi;
pub mod http;
