//! `packed_metadata` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("packed_metadata");
