//! Input that is damaged, hostile or no file: one line of an error, and nothing that harms.

mod bad_input;
#[cfg(unix)]
mod escapes;
mod pipes;
