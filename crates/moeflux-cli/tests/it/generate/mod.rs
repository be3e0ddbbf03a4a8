//! `generate`: texts, answers and calls of tools.

mod calling;
mod demo;
mod generating;
