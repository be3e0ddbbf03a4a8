//! Every source file begins with its description: `//!` in Rust, `//` in WGSL, at most 15 lines.
//!
//! The root of a crate may have more lines: its header is the crate's documentation.

use crate::tidy::Finding;
use crate::tidy::tree::{SourceFile, Tree};

const N_LINES_MAX: usize = 15;

/// Finds files without a header, or with one that is too long.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().filter(|file| file.is_source()).filter_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Option<Finding> {
    let mark = if file.is_rust() { "//!" } else { "//" };
    let header = file.text.lines().take_while(|line| line.starts_with(mark));
    let n_lines = header.count();
    let first = file.text.lines().next().unwrap_or_default();
    let is_empty = first.trim_start_matches(mark).trim().is_empty();
    if n_lines == 0 || is_empty {
        let message = format!("the first line says what the file is: `{mark} ...`");
        Some(Finding::new(&file.path, 1, message))
    } else if n_lines > N_LINES_MAX && file.stem() != "lib" {
        let message = format!("a header of {n_lines} lines; at most {N_LINES_MAX}");
        Some(Finding::new(&file.path, N_LINES_MAX + 1, message))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected: Option<&str>) {
        let found = check(&Tree::of(&[(path, text)]));
        assert_eq!(found.first().map(|finding| finding.message.as_str()), expected);
    }

    #[test]
    fn headers_pass() {
        check_text("a.rs", "//! Reads.\nfn f() {}\n", None);
        check_text("a.wgsl", "// Adds.\nfn f() {}\n", None);
        check_text("a.md", "# Title\n", None);
    }

    #[test]
    fn missing_and_empty_headers_fail() {
        let rust = Some("the first line says what the file is: `//! ...`");
        check_text("a.rs", "use std::fmt;\n//! Late.\n", rust);
        check_text("a.rs", "//!\n//! Late.\n", rust);
        check_text("a.rs", "", rust);
        let shader = Some("the first line says what the file is: `// ...`");
        check_text("a.wgsl", "fn f() {}\n", shader);
    }

    #[test]
    fn a_chapter_fails() {
        check_text("a.rs", &"//! x\n".repeat(16), Some("a header of 16 lines; at most 15"));
        check_text("src/lib.rs", &"//! x\n".repeat(16), None);
    }
}
