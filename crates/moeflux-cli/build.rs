//! Gives the program on Windows a main thread with the stack that it has on Linux and macOS:
//! without this it is 1 MiB, which a build without optimisation overflows.

use std::env::var;

const STACK_BYTES: usize = 8 << 20;

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts about the target so")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if var("CARGO_CFG_WINDOWS").is_ok() {
        let argument = match var("CARGO_CFG_TARGET_ENV").as_deref() {
            Ok("msvc") => format!("/STACK:{STACK_BYTES}"),
            _ => format!("-Wl,--stack,{STACK_BYTES}"),
        };
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
