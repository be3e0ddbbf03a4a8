//! `unsafe` is confined to some crates, and each use is explained and counted.
//!
//! The counts are in `xtask/unsafe.txt`, one crate per line: raising one is a decision to review.
//! **Invariant:** a count is exact, so that no use is added unnoticed.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::numbers;
use crate::tidy::tree::{SourceFile, Tree};

const WALLS: [&str; 5] = [
    "crates/moeflux-gpu/",
    "crates/moeflux-io/",
    "crates/moeflux-kernels/",
    "crates/moeflux-mpi/",
    "crates/moeflux-threads/",
];
const COUNTS: &str = "xtask/unsafe.txt";

/// Finds uses in other crates or without a reason, and counts that differ.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let uses: Vec<(&SourceFile, usize)> = tree
        .rust()
        .flat_map(|file| lex::words(&file.code, "unsafe").map(move |at| (file, at)))
        .collect();
    let mut findings = Vec::new();
    for &(file, at) in &uses {
        let line_number = lex::line_number(&file.code, at);
        if !WALLS.iter().any(|wall| file.path.starts_with(wall)) {
            let message = format!("`unsafe` is only for {}", WALLS.join(", "));
            findings.push(Finding::new(&file.path, line_number, message));
        }
        if needs_reason(&file.code[at..]) && !has_reason(file, line_number - 1) {
            let message = "a comment `SAFETY:` above says which promise holds and why";
            findings.push(Finding::new(&file.path, line_number, message));
        }
    }
    findings.extend(check_counts(tree, &uses));
    findings
}

/// Whether a use needs a reason. Blocks and implementations claim safety; functions and types
/// require it.
fn needs_reason(from_use: &str) -> bool {
    let next = from_use["unsafe".len()..].trim_start();
    next.starts_with('{') || lex::leading_word(next) == "impl"
}

/// Whether the comment above the statement around `line_idx` gives a reason.
fn has_reason(file: &SourceFile, line_idx: usize) -> bool {
    let code: Vec<&str> = file.code.lines().collect();
    let comments: Vec<&str> = file.comments.lines().collect();
    if comments[line_idx].contains("SAFETY:") {
        return true;
    }
    let is_end = |line: &str| line.ends_with([';', '{', '}', ',']);
    for above in (0..line_idx).rev() {
        let (code, comment) = (code[above].trim(), comments[above].trim());
        if comment.contains("SAFETY:") {
            return true;
        }
        let is_blank = code.is_empty() && comment.is_empty();
        if is_blank || is_end(code) && !code.starts_with("#[") {
            return false;
        }
    }
    false
}

fn check_counts(tree: &Tree, uses: &[(&SourceFile, usize)]) -> Vec<Finding> {
    let (entries, mut findings) = numbers::read(tree, COUNTS);
    for wall in WALLS {
        let name = wall.trim_end_matches('/').trim_start_matches("crates/");
        let n_uses = uses.iter().filter(|(file, _)| file.path.starts_with(wall)).count();
        let entry = entries.iter().find(|entry| entry.name == name);
        let (recorded, line_number) = entry.map_or((0, 1), |it| (it.value, it.line_number));
        let advice = match n_uses.cmp(&recorded) {
            std::cmp::Ordering::Equal => continue,
            std::cmp::Ordering::Greater => "raise the number with a reason in the commit",
            std::cmp::Ordering::Less => "lower the number",
        };
        let message = format!("{name}: {n_uses} `unsafe`, recorded {recorded}: {advice}");
        findings.push(Finding::new(COUNTS, line_number, message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSIDE: &str = "crates/moeflux-io/src/a.rs";

    #[track_caller]
    fn check_text(path: &str, text: &str, count: &str, expected: &[(usize, &str)]) {
        // In full, clippy would mistake the texts below for comments of this file.
        let text = text.replace('@', concat!("//", " SAFETY:"));
        let found = check(&Tree::of(&[(path, &text), (COUNTS, count)]));
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    const NO_REASON: &str = "a comment `SAFETY:` above says which promise holds and why";

    #[test]
    fn explained_uses_inside_a_wall_pass() {
        let one = "moeflux-io 1";
        check_text(INSIDE, "@ it is aligned.\nunsafe { f() }", one, &[]);
        check_text(INSIDE, "@ long\n// reason.\n#[inline]\nunsafe { f() }", one, &[]);
        check_text(INSIDE, "@ so.\nlet a =\n    unsafe { f() };", one, &[]);
        check_text(INSIDE, "unsafe fn f() {}", one, &[]);
        check_text(INSIDE, "#![allow(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";", "", &[]);
    }

    #[test]
    fn unexplained_uses_fail() {
        let one = "moeflux-io 1";
        check_text(INSIDE, "unsafe { f() }", one, &[(1, NO_REASON)]);
        check_text(INSIDE, "\nunsafe impl Send for A {}", one, &[(2, NO_REASON)]);
        check_text(INSIDE, "@ x.\nf();\nunsafe { f() }", one, &[(3, NO_REASON)]);
        let arms = "@ x.\nA => unsafe { f() },\nB => unsafe { g() },";
        check_text(INSIDE, arms, "moeflux-io 2", &[(3, NO_REASON)]);
        check_text(INSIDE, "@ x.\n\nunsafe { f() }", one, &[(3, NO_REASON)]);
    }

    #[test]
    fn uses_outside_of_walls_fail() {
        let message = "`unsafe` is only for crates/moeflux-gpu/, crates/moeflux-io/, \
                       crates/moeflux-kernels/, crates/moeflux-mpi/, crates/moeflux-threads/";
        check_text("crates/moeflux/src/a.rs", "unsafe fn f() {}", "", &[(1, message)]);
    }

    #[test]
    fn counts_are_exact() {
        let more = "moeflux-io: 1 `unsafe`, recorded 0: raise the number with a reason in the \
                    commit";
        check_text(INSIDE, "unsafe fn f() {}", "", &[(1, more)]);
        let fewer = "moeflux-io: 1 `unsafe`, recorded 2: lower the number";
        check_text(INSIDE, "unsafe fn f() {}", "# why\nmoeflux-io 2", &[(2, fewer)]);
    }
}
