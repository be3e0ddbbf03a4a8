//! Prose in Markdown files is at most 100 columns wide.
//!
//! Tables, code blocks, headings with links and lines that are a single link or word are exempt,
//! because they cannot be wrapped.

use crate::tidy::Finding;
use crate::tidy::tree::{SourceFile, Tree};

const N_COLUMNS_MAX: usize = 100;
const FENCES: [&str; 2] = ["```", "~~~"];
const INDENT: &str = "    ";

/// Finds lines of prose that are too wide.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let is_prose = |file: &&SourceFile| file.path.ends_with(".md");
    tree.files.iter().filter(is_prose).flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fence = None;
    // Indented code cannot interrupt a paragraph.
    let mut may_begin_code = true;
    for (line_idx, line) in file.text.lines().enumerate() {
        let mark = FENCES.into_iter().find(|mark| line.trim_start().starts_with(mark));
        if let Some(mark) = mark.filter(|mark| fence.is_none_or(|open| open == *mark)) {
            fence = if fence.is_none() { Some(mark) } else { None };
            may_begin_code = true;
            continue;
        }
        if fence.is_some() || (may_begin_code && line.starts_with(INDENT)) {
            continue;
        }
        may_begin_code = line.trim().is_empty() || line.starts_with('#');
        let n_columns = line.chars().count();
        if n_columns > N_COLUMNS_MAX && !is_unbreakable(line.trim()) {
            let message = format!("{n_columns} columns, at most {N_COLUMNS_MAX}: wrap the prose");
            findings.push(Finding::new(&file.path, line_idx + 1, message));
        }
    }
    findings
}

/// Whether a line is a row of a table, a heading with a link, a single link, the definition of a
/// link, or a single word.
fn is_unbreakable(line: &str) -> bool {
    let item = line.trim_start_matches(['*', '-', '>', ' ']).trim_end_matches(['.', ',', ':', ';']);
    let is_link = (item.starts_with('[') || item.starts_with("!["))
        && item.ends_with(')')
        && item.matches("](").count() == 1;
    let is_definition = item.starts_with('[') && item.contains("]: ");
    line.starts_with('|')
        || (line.starts_with('#') && line.contains("]("))
        || is_link
        || is_definition
        || !item.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected: &[usize]) {
        let found = check(&Tree::of(&[(path, text)]));
        let found: Vec<usize> = found.iter().map(|finding| finding.line_number).collect();
        assert_eq!(found, expected);
    }

    fn wide(begin: &str) -> String {
        format!("{begin}{}", "é ".repeat(60))
    }

    #[test]
    fn prose_up_to_the_limit_passes() {
        check_text("a.md", &format!("{}\n", "é".repeat(100)), &[]);
        check_text("a.md", &format!("{}x\n", "é ".repeat(49)), &[]);
    }

    #[test]
    fn wide_prose_fails() {
        check_text("a.md", &wide("x\n"), &[2]);
        check_text("a/b.md", &wide("* "), &[1]);
        check_text("a.md", &wide("# "), &[1]);
        check_text("a.md", &wide("```text\nx\n```\n"), &[4]);
        check_text("a.md", &wide("[a](b) and "), &[1]);
        check_text("a.md", &wide("a\n    continues "), &[2]);
    }

    #[test]
    fn tables_and_code_pass() {
        check_text("a.md", &wide("| "), &[]);
        check_text("a.md", &format!("```text\n{}\n```\n", wide("a ")), &[]);
        check_text("a.md", &wide("~~~\n```\n"), &[]);
        check_text("a.md", &wide("a\n\n    b\n    "), &[]);
        check_text("a.md", &wide("## A\n    "), &[]);
    }

    #[test]
    fn links_that_cannot_be_wrapped_pass() {
        let url = format!("https://example.com/{}", "x".repeat(100));
        check_text("a.md", &url, &[]);
        check_text("a.md", &format!("* [two words]({url}).\n![a b]({url})"), &[]);
        check_text("a.md", &format!("[a]: {url}\n## A [b]({url})"), &[]);
    }

    #[test]
    fn other_files_are_exempt() {
        check_text("a.txt", &wide(""), &[]);
    }
}
