//! Comments give reasons, not the history of the work, postpone nothing, and are not vague.
//!
//! Looks for typical words of such comments. This module knows no grammar: where such a word is
//! needed in its plain sense (an angle, a borrowed part of an array), use a synonym.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

const LATER: [&str; 4] = ["FIXME", "TODO", "XXX", "HACK"];
const CHAPTERS: [&str; 2] = ["phase", "phases"];
const VAGUE: [&str; 5] = ["so many", "nobody", "somebody", "whoever", "everybody"];
const NUMBERED: [&str; 4] = ["slice", "milestone", "issue #", "ticket"];

/// Finds comments with such words.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let scripts = [".sh", ".py", ".toml", ".yml"];
    let is_script = scripts.iter().any(|ending| file.path.ends_with(ending));
    let comments = if is_script { &file.text } else { &file.comments };
    let mut findings = Vec::new();
    for (line_idx, line) in comments.lines().enumerate() {
        // In a script, the text after the first `#` may be a literal. That is good enough for these
        // words.
        let comment = if is_script { line.split_once('#').map_or("", |it| it.1) } else { line };
        if let Some(problem) = problem(comment) {
            findings.push(Finding::new(&file.path, line_idx + 1, problem));
        }
    }
    findings
}

fn problem(comment: &str) -> Option<String> {
    let has = |word: &&&str| lex::words(comment, word).next().is_some();
    if let Some(word) = LATER.iter().find(has) {
        return Some(format!("{word}: do it, or say in the report that it is missing"));
    }
    let lower = comment.to_lowercase();
    let has = |word: &&&str| lex::words(&lower, word).next().is_some();
    if let Some(word) = CHAPTERS.iter().find(has) {
        return Some(format!("`{word}` tells the history of the work; give the reason"));
    }
    if let Some(word) = VAGUE.iter().find(has) {
        return Some(format!("`{word}` is vague: name the number, or who or what it is"));
    }
    let is_numbered = |word: &&&str| {
        let mut places = lower.match_indices(**word).map(|(at, _)| at);
        places.any(|at| begins_with_number(&lower[at + word.len()..]))
    };
    if let Some(word) = NUMBERED.iter().find(is_numbered) {
        return Some(format!("`{word} N` tells the history of the work; give the reason"));
    }
    let of_port = lower.contains("of the port") && lex::words(&lower, "step").next().is_some();
    of_port.then(|| "`step of the port` tells the history of the work".to_owned())
}

/// Whether the text begins with a number, as in ` 5` and ` 5d-9`, but not ` 0..3`.
fn begins_with_number(rest: &str) -> bool {
    let rest = rest.trim_start_matches(' ');
    let after = rest.trim_start_matches(|it: char| it.is_ascii_digit());
    after.len() < rest.len() && !after.trim_start().starts_with("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected_lines: &[usize]) {
        let found = check(&Tree::of(&[(path, text)]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line_number).collect();
        assert_eq!(lines, expected_lines);
    }

    #[test]
    fn reasons_pass() {
        check_text("a.rs", "// The slice 0..3 of a step: emphasised phrases, todos.", &[]);
        check_text("a.rs", "// Issue 8 loads at once.", &[]);
        check_text("a.rs", "// One layer ahead: two evicted live experts (71% -> 58%).", &[]);
        check_text("a.rs", "let phase = \"TODO\"; // An angle.", &[]);
        check_text("a.toml", "a = 1 # so that it builds", &[]);
    }

    #[test]
    fn diaries_fail() {
        for comment in ["Phase 2.", "two phases", "slice 5d-9", "issue #12", "step 3 of the port"] {
            check_text("a.rs", &format!("fn f() {{}}\n// {comment}"), &[2]);
        }
    }

    #[test]
    fn vague_words_fail() {
        for word in VAGUE {
            check_text("a.rs", &format!("/// Waits for {word} to end.\nfn f() {{}}"), &[1]);
        }
        check_text("a.rs", "let nobody = 1;\nf(\"so many\"); // Anybody.", &[]);
    }

    #[test]
    fn work_for_later_fails() {
        for word in LATER {
            check_text("a.rs", &format!("/* {word}: x */"), &[1]);
            check_text("a.sh", &format!("#!/bin/sh\nls # {word}"), &[2]);
        }
    }
}
