//! Damaged and hostile input, and input that is not a file: an error of one harmless line.

mod bad_input;
#[cfg(unix)]
mod escapes;
mod pipes;
