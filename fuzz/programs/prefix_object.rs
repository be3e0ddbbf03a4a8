//! `prefix_object` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("prefix_object");
