//! One thing for one name: a type's name is defined once in the crates.
//!
//! Counts type definitions at the top level of files outside tests; associated types are indented.
//! [`SHARED`] has the names that several files may define, which is a limit in both directions: a
//! name with fewer definitions than stated leaves the list.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

/// Names with several definitions, and how many.
const SHARED: [(&str, usize); 9] = [
    // One implementation per system or instruction set.
    ("KeyReader", 2),
    ("KeyWaker", 2),
    ("NibbleSums", 2),
    ("PressureWatch", 4),
    ("TerminalMode", 2),
    // Public names of crates that are used apart from each other.
    ("Event", 2),
    ("Progress", 2),
    ("Snapshot", 2),
    ("State", 2),
];

/// Names of types that crates define for themselves everywhere.
const EVERYWHERE: [&str; 2] = ["Error", "Result"];

const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Finds names that too many types have.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_shared(tree, &SHARED)
}

fn check_shared(tree: &Tree, shared: &[(&str, usize)]) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for file in tree.rust().filter(|file| is_library(&file.path)) {
        for (name, line_number) in definitions(file) {
            places.entry(name).or_default().push((&file.path, line_number));
        }
    }
    let allowed = |name: &str| shared.iter().find(|it| it.0 == name).map_or(1, |it| it.1);
    let mut findings = Vec::new();
    for (name, places) in &places {
        if places.len() > allowed(name) {
            let others: Vec<&str> = places[1..].iter().map(|it| it.0).collect();
            let message = format!(
                "`{name}` is also the name of a type in {}: give each a name of its own",
                others.join(", ")
            );
            findings.push(Finding::new(places[0].0, places[0].1, message));
        }
    }
    for (name, n_allowed) in shared {
        let n_places = places.get(name).map_or(0, Vec::len);
        if n_places < *n_allowed {
            let message = format!("`{name}` names {n_places} types, not {n_allowed}: lower SHARED");
            findings.push(Finding::new("xtask/src/tidy/names.rs", 1, message));
        }
    }
    findings
}

fn is_library(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !is_test(path)
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("tests_support.rs")
}

/// Returns the types that a file defines at its top level, with their lines.
fn definitions(file: &SourceFile) -> impl Iterator<Item = (&str, usize)> {
    let lines = file.code.lines().enumerate();
    let lines = lines.take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    lines.filter_map(|(line_idx, line)| Some((defined(line)?, line_idx + 1)))
}

fn defined(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or("", |it| it.1).trim_start(),
        None => rest.trim_start(),
    });
    let rest = KEYWORDS.iter().find_map(|it| line.strip_prefix(it)?.strip_prefix(' '))?;
    let name = lex::leading_word(rest);
    (!name.is_empty() && !EVERYWHERE.contains(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_files(files: &[(&str, &str)], shared: &[(&str, usize)], expected: &[&str]) {
        let found = check_shared(&Tree::of(files), shared);
        let found: Vec<String> = found.iter().map(Finding::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "`{found}` does not say `{expected}`");
        }
    }

    #[test]
    fn a_name_with_two_types_is_found_once() {
        let files = [
            ("crates/a/src/x.rs", "use b;\n\npub(super) struct Job<T> {\n}\n"),
            ("crates/b/src/y.rs", "pub enum Job {\n}\n"),
            ("crates/b/src/z.rs", "type Job = u8;\n"),
        ];
        let message = "crates/a/src/x.rs:3: `Job` is also the name of a type in crates/b/src/y.rs, \
                       crates/b/src/z.rs";
        check_files(&files, &[], &[message]);
        check_files(&files, &[("Job", 2)], &[message]);
        check_files(&files, &[("Job", 3)], &[]);
        check_files(&files, &[("Job", 4)], &["names 3 types, not 4"]);
    }

    #[test]
    fn associated_types_tests_and_other_words_do_not_count() {
        let files = [
            ("crates/a/src/x.rs", "impl X for Y {\n    type Value = u8;\n}\nstruct Jobs;\n"),
            ("crates/a/src/y.rs", "impl X for Z {\n    type Value = u8;\n}\nstruct Job;\n"),
            ("crates/a/src/z.rs", "#[cfg(test)]\nmod tests {\n}\nstruct Job;\n"),
            ("crates/a/src/tests.rs", "struct Job;\n"),
            ("crates/a/tests/it/x.rs", "struct Job;\n"),
            ("crates/a/src/error.rs", "// struct Job;\npub enum Error {\n}\n"),
            ("crates/b/src/error.rs", "pub enum Error {\n}\npub type Result<T> = X<T>;\n"),
        ];
        check_files(&files, &[], &[]);
    }
}
