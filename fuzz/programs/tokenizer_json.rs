//! `tokenizer_json` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("tokenizer_json");
