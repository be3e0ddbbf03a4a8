//! `cargo xtask tidy`: checks of the tree that the compiler does not make.

fn main() {}
