//! Downloads from a hub on this machine, with faults.
#![cfg(test)]

mod cache;
mod checking;
mod faults;
mod pulling;
mod support;
