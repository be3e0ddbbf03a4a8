//! The `moeflux` command.

fn main() {}
