//! `index_json` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("index_json");
