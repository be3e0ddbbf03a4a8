//! Tests of the server through real sockets, with the demo model.
#![cfg(test)]

mod client;
mod server;
mod dialects;
mod prompts;
mod owners;
mod plain;
mod page;
mod refusals;
mod rules;
mod replays;
mod guards;
mod sockets;
mod slots;
mod half_close;
mod signs;
mod disconnects;
mod memory;
mod ends;
mod models;
mod log;
mod machine;
mod manage;
