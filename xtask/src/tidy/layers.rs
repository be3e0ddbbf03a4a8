//! One direction of dependence: a module may name only modules that are declared above it.
//!
//! The order of `mod` lines is the order of dependence, in every crate: in `lib.rs` or `main.rs`,
//! and in the file of every module with children. Hence siblings cannot form a cycle. A parent may
//! name all of its children. A child may name items that its parent defines, but not items that the
//! parent re-exports from a lower child. Test modules are exempt. **Invariant:** a path that the
//! text does not show in full (a glob or an alias of an enclosing module, a group or a name right
//! below the root) is itself a finding, so that none escapes.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::paths::{self, Child, NamedPath};
use crate::tidy::tree::{SourceFile, Tree};

const ENGINE: &str = "crates/moeflux/src/lib.rs";

/// Finds names that are declared lower than their user, or that hide their target.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let roots = tree.rust().filter(|file| is_root(&file.path));
    let mut findings: Vec<Finding> =
        roots.flat_map(|root| Crate::new(tree, &root.path).findings()).collect();
    if tree.get(ENGINE).is_none() {
        findings.push(Finding::new(ENGINE, 1, "missing: it states the order of modules"));
    }
    findings
}

/// Returns the modules of the engine, in order.
pub(super) fn modules(tree: &Tree) -> Vec<&str> {
    let children = tree.get(ENGINE).map_or_else(Vec::new, |lib| paths::children(&lib.code));
    children.iter().map(|child| child.name).collect()
}

fn is_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")
}

/// The names of a module, from the crate's root.
type ModulePath<'a> = Vec<&'a str>;

/// A module with its own file.
struct Module<'a> {
    file: &'a SourceFile,
    children: Vec<Child<'a>>,
    paths: Vec<NamedPath<'a>>,
}

/// The modules of one crate.
struct Crate<'a> {
    modules: BTreeMap<ModulePath<'a>, Module<'a>>,
}

impl<'a> Crate<'a> {
    fn new(tree: &'a Tree, root: &'a str) -> Self {
        let folder = &root[..=root.rfind('/').unwrap_or_default()];
        let files = tree.under(folder).filter(|file| file.is_rust());
        let module = |file: &'a SourceFile| {
            let own = module_path(&file.path[folder.len()..]);
            let children = paths::children(&file.code);
            let paths = paths::paths(&file.code, &own);
            (own, Module { file, children, paths })
        };
        Self { modules: files.map(module).collect() }
    }

    fn findings(&self) -> Vec<Finding> {
        self.modules.iter().flat_map(|(own, module)| self.violations(own, module)).collect()
    }

    fn violations(&self, own: &[&'a str], module: &Module<'a>) -> Vec<Finding> {
        for (depth, name) in own.iter().enumerate() {
            let parent = &own[..depth];
            let Some((_, child)) = self.child(parent, name) else {
                let order = self.file_name(parent);
                let message = format!("module `{name}` is not declared in {order}");
                return vec![Finding::new(&module.file.path, 1, message)];
            };
            if child.is_test {
                return Vec::new();
            }
        }
        let judge = |path: &NamedPath<'a>| {
            let message = self.violation(own, &path.names)?;
            let line_number = lex::line_number(&module.file.code, path.at);
            Some(Finding::new(&module.file.path, line_number, message))
        };
        module.paths.iter().filter_map(judge).collect()
    }

    /// Returns the problem with module `own` naming `names`.
    fn violation(&self, own: &[&'a str], names: &[&'a str]) -> Option<String> {
        let (used, item) = self.resolved(names);
        let n_common = own.iter().zip(&used).take_while(|(own, used)| own == used).count();
        let around = &own[..n_common];
        if n_common == own.len() {
            return None;
        }
        if n_common == used.len() {
            let order = self.file_name(around);
            return match (item, around) {
                (None | Some("*"), []) => {
                    Some("name a module in full: no group, glob or alias of the root".to_owned())
                }
                (None | Some("*"), _) => Some(
                    "name what is used: no glob or alias of a module around this one".to_owned(),
                ),
                (Some(item), []) => {
                    Some(format!("`{item}` is no module of {order}: name it by its module"))
                }
                (Some(_), _) => None,
            };
        }
        let (user, used) = (own[n_common], used[n_common]);
        let (own_rank, _) = self.child(around, user)?;
        let (rank, child) = self.child(around, used)?;
        let is_above = rank < own_rank || child.is_test;
        let order = self.file_name(around);
        (!is_above).then(|| format!("`{user}` may not use `{used}`: it stands lower in {order}"))
    }

    /// Returns the module that a path leads to, and the item that it names there, if any.
    fn resolved(&self, names: &[&'a str]) -> (ModulePath<'a>, Option<&'a str>) {
        let is_module = |n: &usize| self.child(&names[..*n], names[*n]).is_some();
        let n_names = (0..names.len()).take_while(is_module).count();
        let Some(&item) = names.get(n_names) else { return (names.to_vec(), None) };
        let own = &names[..n_names];
        // Re-exports of the root are for other crates.
        let module = self.modules.get(own).filter(|_| !own.is_empty());
        let is_from_child = |path: &&NamedPath<'a>| {
            let is_below = path.names.len() > n_names + 1 && path.names.starts_with(own);
            is_below && path.alias == Some(item)
        };
        match module.and_then(|module| module.paths.iter().find(is_from_child)) {
            Some(passed_on) => self.resolved(&passed_on.names),
            None => (own.to_vec(), Some(item)),
        }
    }

    /// Returns a child of `parent` with its index.
    fn child(&self, parent: &[&'a str], name: &str) -> Option<(usize, Child<'a>)> {
        let children = &self.modules.get(parent)?.children;
        children.iter().copied().enumerate().find(|(_, child)| child.name == name)
    }

    /// Returns the file that declares the children of `parent`, relative to the crate's root.
    fn file_name(&self, parent: &[&'a str]) -> String {
        let path = self.modules.get(parent).map_or("its parent", |module| &module.file.path);
        let name = path.rsplit('/').next().unwrap_or(path);
        let folders = if name == "mod.rs" { parent } else { &parent[..parent.len().max(1) - 1] };
        folders.iter().map(|folder| format!("{folder}/")).collect::<String>() + name
    }
}

/// Returns `["experts", "table"]` for `experts/table.rs`, and an empty path for the root.
fn module_path(path: &str) -> ModulePath<'_> {
    let inside = path.strip_suffix(".rs").unwrap_or(path);
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    if matches!(inside, "lib" | "main") { Vec::new() } else { inside.split('/').collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB_RS: &str = "//! x\npub mod ids;\nmod experts;\npub(crate) mod ops;\n#[cfg(test)]\n";

    /// Compares the findings, by line, in a tree of files in `crates/moeflux/src/`.
    #[track_caller]
    fn check_files(files: &[(&str, &str)], expected: &[(usize, &str)]) {
        let paths = files.iter().map(|(path, _)| format!("crates/moeflux/src/{path}"));
        let paths: Vec<String> = paths.collect();
        let files = paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text));
        let found = check(&Tree::of(&files.collect::<Vec<_>>()));
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[track_caller]
    fn check_file(path: &str, text: &str, expected: &[(usize, &str)]) {
        let parent = path.split_once('/').map(|(parent, _)| format!("{parent}/mod.rs"));
        let parent = parent.filter(|parent| parent != path);
        let parent = parent.iter().map(|parent| (parent.as_str(), "mod table;"));
        let files: Vec<_> = [("lib.rs", LIB_RS), (path, text)].into_iter().chain(parent).collect();
        check_files(&files, expected);
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
        check_file("stray.rs", "", &[(1, "module `stray` is not declared in lib.rs")]);
        let message = "module `stray` is not declared in lib.rs";
        check_files(&[("lib.rs", ""), ("stray/deep.rs", "")], &[(1, message)]);
        let message = "module `deep` is not declared in experts/mod.rs";
        check_files(
            &[("lib.rs", "mod experts;"), ("experts/mod.rs", ""), ("experts/deep.rs", "")],
            &[(1, message)],
        );
    }

    #[test]
    fn tests_may_name_all() {
        check_file("ids.rs", "#[cfg(test)]\nmod tests {\n    use crate::ops::Op;\n}", &[]);
        let lib = ("lib.rs", "mod ids;\nmod ops;\n#[cfg(test)]\nmod tests;");
        let tests = ("tests/mod.rs", "use crate::*;\nuse super::ops::Op;");
        check_files(&[lib, tests, ("ids.rs", "use crate::tests::same;")], &[]);
    }

    /// Compares the findings of a file `experts/{name}.rs` beside others: `table`, then `policy`,
    /// then `stream`.
    #[track_caller]
    fn check_sibling(name: &str, text: &str, expected: &[(usize, &str)]) {
        let parent = "mod table;\nmod policy;\nmod stream;\nuse table::Slot;\n\
                      pub(crate) use stream::Stream;\npub(crate) struct Experts;";
        let stream = ("experts/stream/mod.rs", "mod fill;");
        let path = format!("experts/{name}.rs");
        let files = [("lib.rs", "mod experts;"), ("experts/mod.rs", parent), (&path, text), stream];
        check_files(&files[..if path == stream.0 { 3 } else { 4 }], expected);
    }

    const STREAM_FROM_POLICY: &str =
        "`policy` may not use `stream`: it stands lower in experts/mod.rs";

    #[test]
    fn siblings_above_and_parents_pass() {
        check_sibling("policy", "use super::table::{Slot, SlotIdx};\nuse super::Experts;", &[]);
        check_sibling("policy", "use crate::experts::{Experts, table};", &[]);
        check_sibling("policy", "use super::Slot;", &[]);
        check_sibling("stream/fill", "use super::Job;\nuse crate::experts::policy::Lru;", &[]);
        check_sibling("stream/mod", "mod fill;\nuse fill::Fill;\nself::fill::begin();", &[]);
    }

    #[test]
    fn siblings_below_fail() {
        let expected = &[(1, STREAM_FROM_POLICY)];
        check_sibling("policy", "use super::stream::Stream;", expected);
        check_sibling("policy", "use crate::experts::stream::fill::Fill;", expected);
        check_sibling("policy", "use super::{Experts, stream};", expected);
        let expected = &[(1, "`table` may not use `policy`: it stands lower in experts/mod.rs")];
        check_sibling("table", "use super::policy::Lru;", expected);
        let (lib, parent) = (("lib.rs", "mod a;"), ("a.rs", "mod b;\nmod c;"));
        let expected = &[(1, "`b` may not use `c`: it stands lower in a.rs")];
        check_files(&[lib, parent, ("a/b.rs", "use super::c::C;")], expected);
    }

    #[test]
    fn re_exports_belong_to_the_child_that_defines_them() {
        check_sibling("policy", "use super::Stream;", &[(1, STREAM_FROM_POLICY)]);
        check_sibling("policy", "use crate::experts::Stream;", &[(1, STREAM_FROM_POLICY)]);
    }

    #[test]
    fn globs_and_aliases_of_parents_fail() {
        let message = "name what is used: no glob or alias of a module around this one";
        check_sibling("policy", "use super::*;", &[(1, message)]);
        check_sibling("policy", "use crate::experts as e;", &[(1, message)]);
        check_sibling("policy", "pub(in crate::experts) fn f() {}", &[]);
    }

    #[test]
    fn every_crate_is_judged() {
        let main = ("crates/a/src/main.rs", "mod b;\nmod c;\nuse c::C;");
        let b = ("crates/a/src/b.rs", "use crate::c::C;");
        let found = check(&Tree::of(&[(ENGINE, ""), main, b]));
        let message = "`b` may not use `c`: it stands lower in main.rs";
        assert_eq!(found, [Finding::new("crates/a/src/b.rs", 1, message)]);
    }
}
