//! The binary as its users meet it: arguments, output, exit status, one line when it fails.
#![cfg(test)]

mod bad_input;
mod benching;
mod calling;
mod chatting;
mod commands;
mod demo;
#[cfg(unix)]
mod escapes;
mod evaluating;
mod generating;
mod gguf;
mod gpus;
mod least;
mod packing;
#[cfg(unix)]
mod pages;
mod pipes;
mod planning;
mod pulling;
mod serving;
mod support;
#[cfg(unix)]
mod terminal;
mod tracing;
