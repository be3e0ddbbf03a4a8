//! `saved_state` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("saved_state");
