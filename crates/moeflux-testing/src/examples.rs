//! Examples of a crate, run as programs.

use std::path::PathBuf;
use std::process::Command;

/// The program of an example. `cargo test` builds examples beside the test that calls.
pub fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let profile: PathBuf = tests.ancestors().nth(2).unwrap().to_owned();
    profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Runs an example and returns its output.
pub fn printed(name: &str) -> String {
    let example = program(name);
    let output = Command::new(&example).output();
    let output = output.unwrap_or_else(|error| {
        let example = example.display();
        unreachable!("{example}: {error}; build it: cargo build --workspace --examples")
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}
