//! No kernel without its row in the table test.
//!
//! The file of an instruction set is named as `x86_64::avx2` in `dispatch.rs` of its crate: there
//! the choice is made, and from there the tests take what they compare with scalar.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::Tree;

const CRATE: &str = "crates/moeflux-kernels/src/";
const DISPATCH: &str = "crates/moeflux-kernels/src/dispatch.rs";

/// Kernels that the table lacks.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let table = tree.get(DISPATCH).map_or("", |file| &file.code);
    let mut findings = Vec::new();
    for architecture in ["x86_64", "aarch64"] {
        let folder = format!("{CRATE}{architecture}/");
        for file in tree.under(&folder).filter(|file| file.stem() != "mod") {
            let name = format!("{architecture}::{}", file.stem());
            if lex::words(table, &name).next().is_none() {
                let message = format!("`{name}` is not in {DISPATCH}");
                findings.push(Finding::new(&file.path, 1, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_table(table: &str, n_expected: usize) {
        let files = ["x86_64/mod.rs", "x86_64/avx2.rs", "aarch64/neon.rs"];
        let paths: Vec<String> = files.iter().map(|file| format!("{CRATE}{file}")).collect();
        let mut files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
        files.push((DISPATCH, table));
        assert_eq!(check(&Tree::of(&files)).len(), n_expected);
    }

    #[test]
    fn kernels_in_the_table_pass() {
        check_table("[x86_64::avx2::TABLE, aarch64::neon::TABLE]", 0);
    }

    #[test]
    fn kernels_outside_of_the_table_fail() {
        check_table("[x86_64::avx2_vnni::TABLE] // aarch64::neon", 2);
    }
}
