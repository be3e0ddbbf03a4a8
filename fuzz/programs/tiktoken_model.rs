//! `tiktoken_model` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("tiktoken_model");
