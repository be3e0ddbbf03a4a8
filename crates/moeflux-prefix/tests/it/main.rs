//! The store on a simulated file system and on this machine's.
#![cfg(test)]

mod simulated;
mod model;
mod scripts;
mod real;
