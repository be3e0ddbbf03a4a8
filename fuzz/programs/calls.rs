//! `calls` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("calls");
