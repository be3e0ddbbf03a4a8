//! `sums` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("sums");
