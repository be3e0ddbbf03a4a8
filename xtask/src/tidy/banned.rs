//! Names that this project does not use, each with its replacement.
//!
//! Reads text only; names that clippy can ban (`disallowed-methods`, `unwrap_used`) are banned
//! there.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

const BANNED: [(&str, &str); 12] = [
    ("unwrap_or_else(|| panic!", "a typed error, or `expect` with the promise that holds"),
    ("unwrap_or_else(|_| panic!", "a typed error, or `expect` with the promise that holds"),
    ("thread::sleep", "a channel, a condition variable, or a clock that is passed in"),
    ("extern crate", "a path"),
    ("#[path", "a file with the module's name"),
    ("static mut", "a value that somebody owns"),
    ("thread_local!", "a value that the worker owns"),
    ("lazy_static", "a value made by the caller"),
    ("once_cell", "a value made by the caller"),
    ("memmap", "a read into owned memory: a file cut under a mapping kills the process"),
    ("SystemTime::now", "a clock that is passed in"),
    ("rand::random", "a generator with a stated seed"),
];

/// Functions of the platform's library, whose last bits differ between systems.
const OF_THE_PLATFORM: [&str; 19] = [
    ".sin()",
    ".cos()",
    ".tan()",
    ".sin_cos()",
    ".exp()",
    ".exp2()",
    ".exp_m1()",
    ".ln()",
    ".ln_1p()",
    ".log2()",
    ".log10()",
    ".log(",
    ".powf(",
    ".tanh()",
    ".sinh()",
    ".cosh()",
    ".atan2(",
    ".cbrt()",
    ".hypot(",
];

/// Directories where numbers of models are computed; each file up to its tests.
const COMPUTED: [&str; 2] = ["crates/moeflux/src/", "crates/moeflux-kernels/src/"];

/// Exceptions: the reference, which is compared within limits, and tests.
const NOT_COMPUTED: [&str; 3] = ["/backend/reference/", "/tests/", "/tests.rs"];

/// Files that may use a name.
const HOMES: [(&str, &str); 1] = [("SystemTime::now", "crates/moeflux-cli/src/system/clock.rs")];

/// Finds code with such names.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, instead) in BANNED {
        if HOMES.contains(&(name, file.path.as_str())) {
            continue;
        }
        for (at, _) in file.code.match_indices(name) {
            let line_number = lex::line_number(&file.code, at);
            let message = format!("`{name}` is banned: use {instead}");
            findings.push(Finding::new(&file.path, line_number, message));
        }
    }
    findings.extend(functions_of_the_platform(file));
    findings
}

fn functions_of_the_platform(file: &SourceFile) -> Vec<Finding> {
    let is_computed = COMPUTED.iter().any(|start| file.path.starts_with(start))
        && !NOT_COMPUTED.iter().any(|part| file.path.contains(part));
    if !is_computed {
        return Vec::new();
    }
    let code = file.code.split("mod tests {").next().unwrap_or_default();
    let found = OF_THE_PLATFORM.iter().flat_map(|name| {
        code.match_indices(name).map(move |(at, _)| (lex::line_number(code, at), name))
    });
    found
        .map(|(line_number, name)| {
            let message = format!("`{name}` is the platform's: use the crate `libm`");
            Finding::new(&file.path, line_number, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(text: &str, expected_lines: &[usize]) {
        let found = check(&Tree::of(&[("a.rs", text)]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line_number).collect();
        assert_eq!(lines, expected_lines);
    }

    #[test]
    fn other_names_and_comments_pass() {
        check_text("// thread::sleep\nx.unwrap_or_else(|| 1); static A: u8 = 1;", &[]);
        check_text("let a = \"extern crate\"; #[cfg(x)] fn f() {}", &[]);
    }

    #[test]
    fn a_name_passes_at_home() {
        for (name, home) in HOMES {
            assert!(check(&Tree::of(&[(home, name)])).is_empty());
        }
    }

    #[test]
    fn every_banned_name_is_found() {
        for (name, _) in BANNED {
            check_text(&format!("\n{name}"), &[2]);
        }
    }

    #[test]
    fn numbers_of_models_use_no_library_of_the_platform() {
        let check_path = |path: &str, n_expected: usize| {
            let text = "let a = x.sin() + libm::cos(x);\nmod tests { x.exp(); }";
            assert_eq!(check(&Tree::of(&[(path, text)])).len(), n_expected, "{path}");
        };
        check_path("crates/moeflux/src/spec/rope.rs", 1);
        check_path("crates/moeflux-kernels/src/lanes/gates.rs", 1);
        check_path("crates/moeflux/src/backend/reference/router.rs", 0);
        check_path("crates/moeflux/src/sample/tests.rs", 0);
        check_path("crates/moeflux-cli/src/commands/eval/mod.rs", 0);
    }
}
