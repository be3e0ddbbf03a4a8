//! The server of moeflux.
//!
//! A [`http::Server`] listens and passes requests to a [`moeflux_schedule::Service`].
//! `moeflux-wire` implements the dialects of clients: it turns bytes into neutral requests, and
//! neutral events into bytes.
#![forbid(unsafe_code)]

mod process;
mod metrics;
mod openapi;
pub mod http;
