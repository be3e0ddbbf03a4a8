//! Limits on files: small, with Unix line ends, with lines that fit a screen.
//!
//! Generated data ([`DATA_FOLDERS`]) is exempt: its size is bounded where it is made.

use crate::tidy::Finding;
use crate::tidy::tree::{DATA_FOLDERS, SourceFile, Tree};

const N_BYTES_MAX: u64 = 100_000;
const N_COLUMNS_MAX: usize = 100;

/// Finds files that are too large or too wide, or that have foreign line ends.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let is_data = |file: &&SourceFile| DATA_FOLDERS.iter().any(|it| file.path.starts_with(it));
    tree.files.iter().filter(|file| !is_data(file)).flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if file.n_bytes > N_BYTES_MAX {
        let message = format!("{} bytes, at most {N_BYTES_MAX}", file.n_bytes);
        findings.push(Finding::new(&file.path, 1, message));
    }
    for (line_idx, line) in file.text.split('\n').enumerate() {
        let n_columns = line.chars().count();
        if file.is_source() && n_columns > N_COLUMNS_MAX {
            let message = format!("{n_columns} columns, at most {N_COLUMNS_MAX}");
            findings.push(Finding::new(&file.path, line_idx + 1, message));
        }
        if line.ends_with('\r') {
            findings.push(Finding::new(&file.path, line_idx + 1, "ends in CR LF: use LF"));
            break;
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found = check(&Tree::of(&[(path, text)]));
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn common_files_pass() {
        check_text("a.rs", &format!("{}\n", "é".repeat(100)), &[]);
        check_text("a.md", &"x".repeat(100_000), &[]);
        check_text("golden/a.json", &"x\r\n".repeat(100_000), &[]);
    }

    #[test]
    fn large_wide_and_foreign_files_fail() {
        check_text("a.md", &"x".repeat(100_001), &[(1, "100001 bytes, at most 100000")]);
        let wide = format!("\n{}\n", "x".repeat(101));
        check_text("a.rs", &wide, &[(2, "101 columns, at most 100")]);
        check_text("a.md", "a\nb\r\nc\r\n", &[(2, "ends in CR LF: use LF")]);
    }
}
