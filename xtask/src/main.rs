//! `cargo xtask tidy [DIR]`: checks the tree for rules that the compiler does not enforce.
//!
//! Prints one `path:line: message` per finding. Exits with 0 if there is none, 1 if there are some,
//! and 2 after wrong use.

mod tidy;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [DIR]\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::repository_root(),
        ["tidy", root] => PathBuf::from(root),
        _ => {
            print(&mut std::io::stderr(), USAGE);
            return ExitCode::from(2);
        }
    };
    match tidy::run(&root) {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
            print(&mut std::io::stdout(), &lines);
            ExitCode::FAILURE
        }
        Err(problem) => {
            print(&mut std::io::stderr(), &format!("tidy: {problem}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Ignores a closed pipe: its reader has seen enough.
fn print(stream: &mut dyn Write, text: &str) {
    stream.write_all(text.as_bytes()).ok();
}
