//! Tests of the scheduler: what is heard of jobs next to each other is what each gives alone.
#![cfg(test)]

mod examples;
mod giving_up;
mod jobs;
mod openings;
mod reuse;
mod rooms;
mod scripts;
mod session_cache;
mod support;
