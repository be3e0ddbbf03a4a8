//! `tokenizer_config` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("tokenizer_config");
