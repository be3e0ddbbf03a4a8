//! No kernel that the table test does not see.
//!
//! The tests run every table that `dispatch.rs` offers. It takes them from `x86_64::tables` and
//! `aarch64::tables`, and these from one file per instruction set: `avx2::`.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::Tree;

const CRATE: &str = "crates/moeflux-kernels/src/";
const DISPATCH: &str = "crates/moeflux-kernels/src/dispatch.rs";

/// Files of kernels that no table is taken from.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let architectures = ["x86_64", "aarch64"];
    architectures.iter().flat_map(|architecture| check_folder(tree, architecture)).collect()
}

fn check_folder(tree: &Tree, architecture: &str) -> Vec<Finding> {
    let folder = format!("{CRATE}{architecture}/");
    let parent = format!("{folder}mod.rs");
    let code_of = |path: &str| tree.get(path).map_or("", |file| &file.code);
    let is_named = |path: &str, name: &str| lex::words(code_of(path), name).next().is_some();
    let mut findings = Vec::new();
    for file in tree.under(&folder).filter(|file| file.path != parent) {
        let from = format!("{}::table", file.stem());
        let of_all = format!("{architecture}::tables");
        for (path, name) in [(parent.as_str(), &from), (DISPATCH, &of_all)] {
            if !is_named(path, name) {
                let message = format!("untested: {path} does not use `{name}`");
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
    fn check_tables(parent: &str, dispatch: &str, n_expected: usize) {
        let paths = ["x86_64/mod.rs", "x86_64/avx2.rs"].map(|file| format!("{CRATE}{file}"));
        let files = [(paths[0].as_str(), parent), (&paths[1], ""), (DISPATCH, dispatch)];
        assert_eq!(check(&Tree::of(&files)).len(), n_expected);
    }

    #[test]
    fn kernels_in_a_table_pass() {
        check_tables("mod avx2;\nfn tables() { avx2::table() }", "x86_64::tables()", 0);
    }

    #[test]
    fn kernels_outside_of_a_table_fail() {
        check_tables("mod avx2;\nfn tables() { avx512::table() }", "x86_64::tables()", 1);
        check_tables("avx2::table()", "scalar::TABLE // x86_64::tables()", 1);
    }
}
