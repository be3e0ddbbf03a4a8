//! Foreign files are opened in one place, which neither blocks nor mistakes a pipe for a file.
//!
//! Tests, examples and this program open files of their own. Reads text only.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

const OPENS: [&str; 3] = ["File::open(", "fs::read(", "fs::read_to_string("];

/// Files that open fixed paths or directories, or that cannot use `moeflux-io`.
const HOMES: [&str; 12] = [
    "crates/moeflux-cli/src/commands/doctor/system.rs",
    "crates/moeflux-cli/src/system/machine.rs",
    "crates/moeflux-cli/src/system/volume.rs",
    // Checks the kind of file first; depends on no other crate.
    "crates/moeflux-demo/src/lib.rs",
    "crates/moeflux-io/src/system/control_group.rs",
    "crates/moeflux-io/src/system/linux.rs",
    "crates/moeflux-io/src/system/mounts.rs",
    "crates/moeflux-mpi/src/beside.rs",
    // Opens directories, to sync them.
    "crates/moeflux-prefix/src/files/real.rs",
    "crates/moeflux-server/src/process.rs",
    "crates/moeflux-threads/src/cores/linux.rs",
    // Opens directories, to sync and to lock them.
    "crates/moeflux/src/pack/folder.rs",
];

/// Finds places where files are opened without `moeflux-io`.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().filter(|file| is_shipped(&file.path)).flat_map(check_file).collect()
}

/// Whether a file is part of a crate that users run.
fn is_shipped(path: &str) -> bool {
    let is_test = ["tests", "testing"].iter().any(|it| path.contains(it));
    path.starts_with("crates/") && path.contains("/src/") && !is_test && !HOMES.contains(&path)
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let end = file.code.find("#[cfg(test)]\nmod tests {").unwrap_or(file.code.len());
    let code = &file.code[..end];
    let mut findings = Vec::new();
    for name in OPENS {
        for (at, _) in code.match_indices(name) {
            // `ReadFile::open(` is the right way.
            if code[..at].ends_with(|before: char| before.is_alphanumeric()) {
                continue;
            }
            let message = format!(
                "`{name}..)` may wait for ever on a pipe: use `moeflux_io::ReadFile` or \
                 `moeflux::provider::format::read_file`"
            );
            findings.push(Finding::new(&file.path, lex::line_number(code, at), message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected_lines: &[usize]) {
        let found = check(&Tree::of(&[(path, text)]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line_number).collect();
        assert_eq!(lines, expected_lines, "{path}");
    }

    #[test]
    fn opens_are_found_outside_of_tests() {
        let text = "fn f() {}\nlet a = File::open(p);\nlet b = fs::read(p);\n";
        check_text("crates/moeflux/src/a.rs", text, &[2, 3]);
        check_text("crates/moeflux/src/tests.rs", text, &[]);
        check_text("crates/moeflux/tests/it/a.rs", text, &[]);
        check_text(HOMES[0], text, &[]);
        let tested = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        check_text("crates/moeflux/src/a.rs", &tested, &[]);
        check_text("crates/moeflux/src/a.rs", "ReadFile::open(p); read_file(p, 1);", &[]);
    }
}
