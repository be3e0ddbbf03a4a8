//! `gguf_text` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("gguf_text");
