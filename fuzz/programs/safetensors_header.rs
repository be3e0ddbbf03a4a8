//! `safetensors_header` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("safetensors_header");
