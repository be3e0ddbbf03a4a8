//! `gguf` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("gguf");
