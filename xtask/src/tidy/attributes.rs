//! Attributes that disable a check: no test is skipped, and every silenced lint has a reason.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

/// Finds skipped tests, and silenced lints without a reason.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let code = &file.code;
    let mut findings = Vec::new();
    let opening = |mark| code.match_indices(mark).map(move |(at, _)| at + str::len(mark) - 1);
    for open_at in opening("#[").chain(opening("#![")) {
        let attribute = lex::bracketed(code, open_at);
        let line_number = lex::line_number(code, open_at);
        if has_part(attribute, "ignore") {
            let message = "no skipped tests: make it fast, or remove it";
            findings.push(Finding::new(&file.path, line_number, message));
        }
        for list in ["allow", "expect"] {
            let places = lex::words(attribute, list).map(|at| at + list.len());
            let lists = places.filter(|&at| attribute[at..].starts_with('('));
            let no_reason = |&at: &usize| !has_part(lex::bracketed(attribute, at), "reason");
            findings.extend(lists.filter(no_reason).map(|_| {
                let message = format!("`{list}` without a `reason`");
                Finding::new(&file.path, line_number, message)
            }));
        }
    }
    findings
}

fn has_part(attribute: &str, name: &str) -> bool {
    attribute.split([',', '(', ')']).any(|part| lex::leading_word(part.trim_start()) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(text: &str, expected: &[&str]) {
        let found = check(&Tree::of(&[("a.rs", text)]));
        let found: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn reasons_and_other_attributes_pass() {
        check_text("#![allow(unsafe_code, reason = \"a (wall)\")]\n#[test]\nfn f() {}", &[]);
        check_text("#[cfg_attr(x, expect(dead_code, reason = \"y\"))]", &[]);
        check_text("a.expect(\"x\"); b[allow(c)]; // #[ignore]", &[]);
        check_text("#[derive(Debug)]\n#[error(\"ignore\")]\nstruct A;", &[]);
    }

    #[test]
    fn silenced_lints_without_reason_fail() {
        check_text("#[allow(dead_code)]", &["`allow` without a `reason`"]);
        check_text("#![expect(\n    dead_code,\n)]", &["`expect` without a `reason`"]);
        check_text("#[cfg_attr(x, allow(a))]", &["`allow` without a `reason`"]);
    }

    #[test]
    fn skipped_tests_fail() {
        let message = "no skipped tests: make it fast, or remove it";
        check_text("#[test]\n#[ignore]\nfn f() {}", &[message]);
        check_text("#[ignore = \"slow\"]", &[message]);
        check_text("#[cfg_attr(miri, ignore)]", &[message]);
    }
}
