//! `chat_template` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("chat_template");
