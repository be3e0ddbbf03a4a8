//! The server of moeflux.
//!
//! [`wire`] turns the bytes of a request into a neutral [`wire::Request`], and neutral
//! [`wire::Event`]s into the bytes of the answer, for each dialect that clients speak. It performs
//! no I/O and reads no clock: ids and times come from the caller.
#![forbid(unsafe_code)]

pub mod wire;
