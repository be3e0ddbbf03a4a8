//! `pack_sums` for libFuzzer.
#![no_main]

moeflux_fuzz::program!("pack_sums");
