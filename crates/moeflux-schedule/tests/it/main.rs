//! Tests of the scheduler: jobs that run together give the same events as each job alone.
#![cfg(test)]

mod examples;
mod giving_up;
mod jobs;
mod openings;
mod reuse;
mod rooms;
mod saved;
mod scripts;
mod session_cache;
mod support;
