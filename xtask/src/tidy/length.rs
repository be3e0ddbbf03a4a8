//! Limits on the length of a file: its lines of code, and all of its lines.
//!
//! Exceptions are in `xtask/ratchet.txt`: `path code N` or `path all N`. **Invariant:** an
//! exception is exactly as large as the file needs, so that it shrinks with the file.

use crate::tidy::Finding;
use crate::tidy::numbers::{self, RecordedNumber};
use crate::tidy::tree::{SourceFile, Tree};

const RATCHET: &str = "xtask/ratchet.txt";
const LIMITS: [(&str, usize); 2] = [("code", 500), ("all", 600)];

/// Finds files that are too long, and exceptions that are too large.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (entries, mut findings) = numbers::read(tree, RATCHET);
    for file in tree.files.iter().filter(|file| file.is_source()) {
        for (kind, limit) in LIMITS {
            let name = format!("{} {kind}", file.path);
            let excepted = entries.iter().find(|entry| entry.name == name);
            let limit = excepted.map_or(limit, |entry| entry.value);
            let n_lines = measure(file, kind);
            if n_lines > limit {
                let message = format!("{n_lines} lines ({kind}), at most {limit}: divide the file");
                findings.push(Finding::new(&file.path, 1, message));
            }
        }
    }
    findings.extend(entries.iter().filter_map(|entry| slack(tree, entry)));
    findings
}

fn measure(file: &SourceFile, kind: &str) -> usize {
    if kind == "code" { file.n_code_lines } else { file.text.lines().count() }
}

fn slack(tree: &Tree, entry: &RecordedNumber) -> Option<Finding> {
    let finding = |message: String| Some(Finding::new(RATCHET, entry.line_number, message));
    let (path, kind) = entry.name.rsplit_once(' ').unwrap_or((&entry.name, ""));
    let limit = LIMITS.iter().find(|(it, _)| *it == kind);
    let (Some(file), Some(&(_, limit))) = (tree.get(path), limit) else {
        return finding(format!("no such file or limit: `{}`", entry.name));
    };
    let n_lines = measure(file, kind);
    if n_lines <= limit {
        finding("no exception is needed any more: remove the line".to_owned())
    } else if n_lines < entry.value {
        finding(format!("{n_lines} are enough: lower the number"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_lines(n_code: usize, n_comments: usize, ratchet: &str, expected: &[&str]) {
        let text = "f();\n".repeat(n_code) + &"// x\n".repeat(n_comments);
        let found = check(&Tree::of(&[("a.rs", &text), (RATCHET, ratchet)]));
        let found: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn files_up_to_the_limits_pass() {
        check_lines(500, 100, "", &[]);
    }

    #[test]
    fn longer_files_fail() {
        check_lines(501, 0, "", &["501 lines (code), at most 500: divide the file"]);
        check_lines(500, 101, "", &["601 lines (all), at most 600: divide the file"]);
    }

    #[test]
    fn an_exception_that_is_needed_passes() {
        check_lines(510, 0, "a.rs code 510", &[]);
        check_lines(511, 0, "a.rs code 510", &["511 lines (code), at most 510: divide the file"]);
    }

    #[test]
    fn an_exception_larger_than_needed_fails() {
        check_lines(510, 0, "a.rs code 511", &["510 are enough: lower the number"]);
        let unneeded = "no exception is needed any more: remove the line";
        check_lines(500, 0, "a.rs code 510", &[unneeded]);
        check_lines(5, 0, "b.rs code 510", &["no such file or limit: `b.rs code`"]);
    }
}
