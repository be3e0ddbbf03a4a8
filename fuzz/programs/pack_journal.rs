//! `pack_journal` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("pack_journal");
