//! Downloads from a hub on this machine, with what goes wrong on the way.
#![cfg(test)]

mod cache;
mod checking;
mod faults;
mod pulling;
mod support;
