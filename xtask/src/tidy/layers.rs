//! One direction: a module of the engine may name only modules declared above it in `lib.rs`.
//!
//! Paths are found by text, through `crate::` and through `super::` that climbs to the crate root.
//! **Invariant:** a path to the root that the text does not show in full (a group, a glob, an
//! alias, a name that is no module) is a finding itself, so that none escapes.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{File, Tree};

const SOURCE: &str = "crates/moeflux/src/";
const LIB: &str = "crates/moeflux/src/lib.rs";

/// Names that stand lower than their user, or that hide what is used.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(lib) = tree.get(LIB) else {
        return vec![Finding::new(LIB, 1, "missing: it states the order of modules")];
    };
    let order = declared_modules(&lib.code);
    let files = tree.under(SOURCE).filter(|file| file.is_rust() && file.path != LIB);
    files.flat_map(|file| violations(&order, file)).collect()
}

/// The modules of the engine, in order.
pub(super) fn modules(tree: &Tree) -> Vec<&str> {
    tree.get(LIB).map_or_else(Vec::new, |lib| declared_modules(&lib.code))
}

fn declared_modules(lib_code: &str) -> Vec<&str> {
    lib_code.lines().filter_map(declared_module).collect()
}

fn declared_module(line: &str) -> Option<&str> {
    let (visibility, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    matches!(visibility.trim(), "" | "pub" | "pub(crate)").then_some(name)
}

fn violations(order: &[&str], file: &File) -> Vec<Finding> {
    let own_path = module_path(&file.path);
    let own = own_path[0];
    let rank = |module: &str| order.iter().position(|&it| it == module);
    let Some(own_rank) = rank(own) else {
        let message = format!("module `{own}` is not declared in lib.rs");
        return vec![Finding::new(&file.path, 1, message)];
    };
    let judge = |name: RootName<'_>| {
        let message = match (name.text, rank(name.text)) {
            (_, Some(rank)) if rank <= own_rank => return None,
            (used, Some(_)) => format!("`{own}` may not use `{used}`: it stands lower in lib.rs"),
            ("", None) => "name a module in full: no group, glob or alias of the root".to_owned(),
            (used, None) => format!("`{used}` is no module of lib.rs: name it by its module"),
        };
        Some(Finding::new(&file.path, lex::line_number(&file.code, name.at), message))
    };
    root_names(&file.code, own_path.len()).into_iter().filter_map(judge).collect()
}

/// `["experts", "table"]` for `crates/moeflux/src/experts/table.rs`.
fn module_path(path: &str) -> Vec<&str> {
    let inside = path.strip_prefix(SOURCE).unwrap_or(path);
    let inside = inside.strip_suffix(".rs").unwrap_or(inside);
    inside.strip_suffix("/mod").unwrap_or(inside).split('/').collect()
}

/// What follows a path that begins at the crate root; empty if that is not an identifier.
struct RootName<'a> {
    at: usize,
    text: &'a str,
}

/// Every name after a path to the root, in a file whose module is `file_depth` below the root.
fn root_names(code: &str, file_depth: usize) -> Vec<RootName<'_>> {
    let mut names = Vec::new();
    let mut braces = Vec::new();
    let mut at = 0;
    let mut previous = "";
    let mut opens_module = false;
    while at < code.len() {
        let word = lex::leading_word(&code[at..]);
        let step = code[at..].chars().next().map_or(1, char::len_utf8);
        match &code[at..at + word.len().max(step)] {
            "{" => braces.push(std::mem::take(&mut opens_module)),
            "}" => drop(braces.pop()),
            ";" => opens_module = false,
            // `pub(crate)` and `pub(super)` name no module.
            "crate" | "super" if previous == "(" && code[at + word.len()..].starts_with(')') => {}
            "crate" => names.push(RootName { at, text: after_path(&code[at + word.len()..]) }),
            "super" => {
                let depth = file_depth + braces.iter().filter(|&&is_module| is_module).count();
                let (n_supers, rest) = climb(&code[at..]);
                if n_supers >= depth {
                    names.push(RootName { at, text: after_path(rest) });
                }
                at = code.len() - rest.len();
                continue;
            }
            _ if previous == "mod" => opens_module = true,
            _ => {}
        }
        let len = word.len().max(step);
        if !code[at..at + len].trim().is_empty() {
            previous = &code[at..at + len];
        }
        at += len;
    }
    names
}

/// How many `super` follow each other, and what comes after the last.
fn climb(code: &str) -> (usize, &str) {
    let mut n_supers = 1;
    let mut rest = &code["super".len()..];
    while let Some(next) = rest.strip_prefix("::super") {
        n_supers += 1;
        rest = next;
    }
    (n_supers, rest)
}

fn after_path(rest: &str) -> &str {
    rest.strip_prefix("::").map_or("", lex::leading_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB_RS: &str = "//! x\npub mod ids;\nmod experts;\npub(crate) mod ops;\n#[cfg(test)]\n";

    #[track_caller]
    fn check_file(path: &str, text: &str, expected: &[(usize, &str)]) {
        let path = format!("{SOURCE}{path}");
        let tree = Tree::of(&[(LIB, LIB_RS), (&path, text)]);
        let found = check(&tree);
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    const OPS_FROM_EXPERTS: &str = "`experts` may not use `ops`: it stands lower in lib.rs";
    const IN_FULL: &str = "name a module in full: no group, glob or alias of the root";

    #[test]
    fn upward_and_own_names_pass() {
        check_file("ops.rs", "use crate::ids::{A, B};\nuse crate::ops::Op;", &[]);
        check_file("experts/mod.rs", "mod table;\npub use table::Table;\nuse std::fmt;", &[]);
        check_file("ops/mod.rs", "pub(crate) fn f() {}\npub(super) fn g() {}", &[]);
    }

    #[test]
    fn downward_names_fail() {
        check_file("experts.rs", "\nuse crate::ops::Op;", &[(2, OPS_FROM_EXPERTS)]);
        check_file("experts/table.rs", "fn f(x: crate::ops::Op) {}", &[(1, OPS_FROM_EXPERTS)]);
        check_file("experts.rs", "pub(in crate::ops) fn f() {}", &[(1, OPS_FROM_EXPERTS)]);
    }

    #[test]
    fn super_that_reaches_the_root_is_judged() {
        check_file("experts.rs", "use super::ops::Op;", &[(1, OPS_FROM_EXPERTS)]);
        check_file("experts/mod.rs", "use super::ops::Op;", &[(1, OPS_FROM_EXPERTS)]);
        check_file("experts/table.rs", "use super::super::ops::Op;", &[(1, OPS_FROM_EXPERTS)]);
        check_file("ops.rs", "use super::ids::A;", &[]);
        check_file("ops.rs", "use super::*;", &[(1, IN_FULL)]);
    }

    #[test]
    fn super_that_stays_inside_passes() {
        check_file("experts/table.rs", "use super::ops;", &[]);
        check_file("experts.rs", "mod tests {\n    use super::*;\n    use super::ops;\n}", &[]);
    }

    #[test]
    fn modules_in_a_file_are_counted() {
        let text = "fn f() { g() }\nmod tests {\n    use super::super::ops::Op;\n}";
        check_file("experts.rs", text, &[(3, OPS_FROM_EXPERTS)]);
        let text = "mod tests {\n    fn f() {}\n}\nuse super::ops::Op;";
        check_file("experts.rs", text, &[(4, OPS_FROM_EXPERTS)]);
        check_file("experts.rs", "mod tests {\n    use crate::ids::A;\n}", &[]);
    }

    #[test]
    fn root_names_groups_and_aliases_fail() {
        let no_module = "`Op` is no module of lib.rs: name it by its module";
        check_file("ops.rs", "use crate::Op;", &[(1, no_module)]);
        check_file("ops.rs", "use crate::{ids, experts};", &[(1, IN_FULL)]);
        check_file("ops.rs", "use crate as root;", &[(1, IN_FULL)]);
    }

    #[test]
    fn other_crates_comments_and_literals_pass() {
        check_file("ids.rs", "use moeflux_io::ReadFile;\nuse my_crate::ops::Op;", &[]);
        check_file("ids.rs", "//! See crate::ops.\nconst A: &str = \"crate::ops\";", &[]);
    }

    #[test]
    fn an_undeclared_module_is_found() {
        let message = "module `stray` is not declared in lib.rs";
        check_file("stray.rs", "", &[(1, message)]);
        check_file("stray/deep.rs", "", &[(1, message)]);
    }
}
