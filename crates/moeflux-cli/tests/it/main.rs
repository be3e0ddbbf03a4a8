//! The binary as its users meet it: arguments, output, exit status, one line when it fails.
#![cfg(test)]

mod chatting;
mod commands;
mod comparing;
mod evaluating;
mod generate;
mod input;
mod machine;
mod models;
#[cfg(unix)]
mod pages;
mod saving;
mod serving;
mod support;
#[cfg(unix)]
mod terminal;
mod tracing;
