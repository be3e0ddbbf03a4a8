//! Tests of the dialects through the public interface: recorded requests, and recorded answers.
#![cfg(test)]

mod answers;
mod calls;
mod dialects;
mod engine;
mod hostile;
mod prompts;
mod recorded;
mod refusals;
mod rules;
