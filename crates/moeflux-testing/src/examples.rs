//! Examples of a crate, run as programs.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example and returns its output. `cargo test` builds examples beside the test that calls.
pub fn printed(name: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let profile: PathBuf = tests.ancestors().nth(2).unwrap().to_owned();
    let example = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let output = Command::new(&example).output();
    let output = output.unwrap_or_else(|error| {
        let example = example.display();
        unreachable!("{example}: {error}; build it: cargo build --workspace --examples")
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}
