//! Every kernel is reachable by the test of all tables.
//!
//! The tests run every table that `dispatch.rs` offers. It takes them from `x86_64::tables` and
//! `aarch64::tables`, and these from one module per instruction set, a file or a directory:
//! `avx2::`. A file in such a directory either has its own table, `avx2::vnni::`, or is shared by
//! the directory's tables: then its `mod.rs` or one of these tables must use it.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::Tree;

const CRATE: &str = "crates/moeflux-kernels/src/";
const DISPATCH: &str = "crates/moeflux-kernels/src/dispatch.rs";

/// Finds files of kernels that no table uses.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let architectures = ["x86_64", "aarch64"];
    architectures.iter().flat_map(|architecture| check_folder(tree, architecture)).collect()
}

fn check_folder(tree: &Tree, architecture: &str) -> Vec<Finding> {
    let folder = format!("{CRATE}{architecture}/");
    let parent = format!("{folder}mod.rs");
    let code_of = |path: &str| tree.get(path).map_or("", |file| &file.code);
    let mut findings = Vec::new();
    for file in tree.under(&folder).filter(|file| file.path != parent) {
        let module = module_of(&file.path[folder.len()..]);
        let mut uses = vec![
            (parent.clone(), format!("{module}::table")),
            (DISPATCH.to_owned(), format!("{architecture}::tables")),
        ];
        // A file without a table belongs to those of the module around it.
        if let Some((outer, name)) = module.rsplit_once("::")
            && !defines_table(&file.code)
        {
            let around = format!("{folder}{}/", outer.replace("::", "/"));
            let mut tables = tree.under(&around).filter(|it| defines_table(&it.code));
            if tables.any(|it| is_named(&it.code, &format!("use super::{name}"))) {
                continue;
            }
            uses[0] = (format!("{around}mod.rs"), format!("use {name}"));
        }
        for (path, name) in uses {
            if !is_named(code_of(&path), &name) {
                let message = format!("untested: {path} does not use `{name}`");
                findings.push(Finding::new(&file.path, 1, message));
            }
        }
    }
    findings
}

/// Returns `avx2::vnni` for `avx2/vnni.rs`, and `avx2` for `avx2/mod.rs`.
fn module_of(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/mod").unwrap_or(path).replace('/', "::")
}

fn defines_table(code: &str) -> bool {
    lex::words(code, "fn table").next().is_some()
}

fn is_named(code: &str, name: &str) -> bool {
    lex::words(code, name).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISPATCHED: (&str, &str) = (DISPATCH, "x86_64::tables()");

    #[track_caller]
    fn check_tables(files: &[(&str, &str)], n_expected: usize) {
        let paths: Vec<_> = files.iter().map(|(file, _)| format!("{CRATE}x86_64/{file}")).collect();
        let files = paths.iter().zip(files).map(|(path, (_, code))| (path.as_str(), *code));
        let files: Vec<_> = files.chain([DISPATCHED]).collect();
        assert_eq!(check(&Tree::of(&files)).len(), n_expected);
    }

    #[test]
    fn kernels_in_a_table_pass() {
        let parent = ("mod.rs", "mod avx2;\nfn tables() { avx2::table() }");
        check_tables(&[parent, ("avx2.rs", "")], 0);
        check_tables(&[parent, ("avx2/mod.rs", "")], 0);
    }

    #[test]
    fn kernels_outside_of_a_table_fail() {
        let parent = ("mod.rs", "mod avx2;\nfn tables() { avx512::table() }");
        check_tables(&[parent, ("avx2.rs", "")], 1);
        check_tables(&[parent, ("avx2/mod.rs", "")], 1);
        let paths = ["x86_64/mod.rs", "x86_64/avx2.rs"].map(|file| format!("{CRATE}{file}"));
        let dispatch = (DISPATCH, "scalar::TABLE // x86_64::tables()");
        let files = [(paths[0].as_str(), "avx2::table()"), (&paths[1], ""), dispatch];
        assert_eq!(check(&Tree::of(&files)).len(), 1);
    }

    #[test]
    fn shared_kernels_are_used_by_the_table_around_them() {
        let parent = ("mod.rs", "[avx2::table(), avx2::vnni::table()]");
        let integers = ("avx2/integers.rs", "fn add() {}");
        check_tables(&[parent, ("avx2/mod.rs", "use integers::{add};"), integers], 0);
        check_tables(&[parent, ("avx2/mod.rs", "mod integers;"), integers], 1);
        let beside = ("avx2/vnni.rs", "use super::integers::{add};\nfn table() {}");
        check_tables(&[parent, ("avx2/mod.rs", "mod integers;"), integers, beside], 0);
        let no_table = ("avx2/more.rs", "use super::integers::{add};");
        check_tables(&[parent, ("avx2/mod.rs", "use more;"), integers, no_table], 1);
    }

    #[test]
    fn a_table_within_an_instruction_set_is_taken_too() {
        let outer = ("avx2/mod.rs", "pub(super) mod vnni;\nuse vnni::open;");
        let vnni = ("avx2/vnni.rs", "pub(in crate::x86_64) fn table() {}");
        check_tables(&[("mod.rs", "[avx2::table(), avx2::vnni::table()]"), outer, vnni], 0);
        check_tables(&[("mod.rs", "[avx2::table()]"), outer, vnni], 1);
    }
}
