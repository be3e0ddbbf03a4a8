//! `config_json` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("config_json");
