//! `generation_config` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("generation_config");
