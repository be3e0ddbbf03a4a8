//! Finds the paths in a module's code that name items of its own crate.
//!
//! **Invariant:** a path is given from the crate's root: `super` and `self` are resolved, inline
//! modules counted, groups expanded. Test code is skipped. Paths are found by text; the only
//! modules known here are the children that the code itself declares.

use crate::tidy::lex;

/// A child that a module declares: `mod name;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Whether it is compiled for tests only.
    pub(super) is_test: bool,
}

/// A path in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedPath<'a> {
    /// The offset of its end, so that each path of a multi-line group has its own line.
    pub(super) at: usize,
    /// Its names from the crate's root. The last is `*` for a glob. Empty for the root itself, and
    /// for a group of names right below the root.
    pub(super) names: Vec<&'a str>,
    /// The name that a `use` binds; `None` outside a `use`.
    pub(super) alias: Option<&'a str>,
}

/// Returns the children that `code` declares, in order.
pub(super) fn children(code: &str) -> Vec<Child<'_>> {
    let mut children = Vec::new();
    let mut is_test = false;
    for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
            continue;
        }
        children.extend(declared(line).map(|name| Child { name, is_test }));
        is_test = false;
    }
    children
}

fn declared(line: &str) -> Option<&str> {
    let (visibility, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
    let visibility = visibility.trim();
    (visibility.is_empty() || visibility.starts_with("pub")).then_some(name)
}

/// Returns the paths in the `code` of module `own` that begin at the crate's root, at the module,
/// at an enclosing module, or, in a `use`, at a child.
pub(super) fn paths<'a>(code: &'a str, own: &[&'a str]) -> Vec<NamedPath<'a>> {
    let children = children(code);
    let mut reader = PathReader::new(code);
    let mut blocks: Vec<CodeBlock<'_>> = Vec::new();
    while let Some(token) = reader.token(0) {
        let inline = blocks.iter().filter_map(|block| block.module);
        let module = || own.iter().copied().chain(inline).collect();
        match token {
            "{" => {
                let module = (reader.before(2) == "mod").then(|| reader.before(1));
                blocks.push(CodeBlock { module, is_test: reader.is_test });
            }
            // Code after a block is test code only if the block is inside test code.
            "}" => {
                blocks.pop();
                reader.is_test = blocks.last().is_some_and(|block| block.is_test);
            }
            "use" => reader.is_use = true,
            ";" => {
                reader.is_use = false;
                reader.is_test = blocks.last().is_some_and(|block| block.is_test);
            }
            "#" if reader.is_for_tests() => reader.is_test = true,
            _ if reader.is_scope() => {}
            "crate" => {
                reader.at += 1;
                reader.rest_of_path(Vec::new());
                continue;
            }
            "self" if reader.token(1) != Some("::") => {}
            "super" | "self" => {
                reader.tree(module());
                continue;
            }
            _ if reader.before(1) == "use" && children.iter().any(|it| it.name == token) => {
                reader.tree(module());
                continue;
            }
            _ => {}
        }
        reader.at += 1;
    }
    reader.found
}

/// Splits code into words, `::` and single other characters, each with its offset.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = code[at..].chars().next() {
        let len = match lex::leading_word(&code[at..]).len() {
            0 if code[at..].starts_with("::") => 2,
            0 => first.len_utf8(),
            len => len,
        };
        if !first.is_whitespace() {
            tokens.push((at, &code[at..at + len]));
        }
        at += len;
    }
    tokens
}

/// Code between braces.
struct CodeBlock<'a> {
    /// The name of the inline module, if it is one.
    module: Option<&'a str>,
    /// Whether it is for tests only.
    is_test: bool,
}

/// Reads the paths in code, token by token.
struct PathReader<'a> {
    tokens: Vec<(usize, &'a str)>,
    at: usize,
    is_use: bool,
    is_test: bool,
    found: Vec<NamedPath<'a>>,
}

impl<'a> PathReader<'a> {
    fn new(code: &'a str) -> Self {
        let found = Vec::new();
        Self { tokens: tokens(code), at: 0, is_use: false, is_test: false, found }
    }

    /// Whether `#[cfg(test)]` begins here.
    fn is_for_tests(&self) -> bool {
        let expected = ["#", "[", "cfg", "(", "test", ")", "]"];
        expected.iter().enumerate().all(|(n, &token)| self.token(n) == Some(token))
    }

    fn token(&self, n_ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + n_ahead).map(|&(_, text)| text)
    }

    /// Returns the token `n_back` tokens back; empty before the first.
    fn before(&self, n_back: usize) -> &'a str {
        self.at.checked_sub(n_back).map_or("", |at| self.tokens[at].1)
    }

    /// Whether this is the scope of `pub(crate)`, `pub(super)` or `pub(in ..)`: it restricts
    /// visibility and uses nothing.
    fn is_scope(&self) -> bool {
        let is_pub = |n_back| self.before(n_back) == "(" && self.before(n_back + 1) == "pub";
        is_pub(1) || self.before(1) == "in" && is_pub(2)
    }

    /// Reads a path, or a tree of paths in a `use`, that continues `names`.
    fn tree(&mut self, mut names: Vec<&'a str>) {
        match self.token(0) {
            Some("{") => {
                if names.is_empty() {
                    self.find(Vec::new());
                }
                self.at += 1;
                while let Some(token) = self.token(0).filter(|&token| token != "}") {
                    if token == "," {
                        self.at += 1;
                    } else {
                        self.tree(names.clone());
                    }
                }
                self.at += 1;
                return;
            }
            Some("super") => drop(names.pop()),
            Some("self") => {}
            Some(token) if token == "*" || token.starts_with(lex::is_word) => names.push(token),
            // Generic arguments, in an expression.
            _ => return self.find(names),
        }
        self.at += 1;
        self.rest_of_path(names);
    }

    /// Reads the continuation after one of a path's names.
    fn rest_of_path(&mut self, names: Vec<&'a str>) {
        if self.token(0) == Some("::") {
            self.at += 1;
            self.tree(names);
        } else {
            self.find(names);
        }
    }

    /// Records the path that ends here, and skips its alias.
    fn find(&mut self, names: Vec<&'a str>) {
        let at = self.tokens[self.at - 1].0;
        let mut alias = names.last().copied().unwrap_or_default();
        if self.is_use && self.token(0) == Some("as") {
            alias = self.token(1).unwrap_or_default();
            self.at += 2;
        }
        if !self.is_test {
            self.found.push(NamedPath { at, names, alias: self.is_use.then_some(alias) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the paths of the module `a::b`, as text.
    #[track_caller]
    fn check(code: &str, expected: &[&str]) {
        let found: Vec<String> =
            paths(code, &["a", "b"]).iter().map(|path| path.names.join("::")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_are_written_out() {
        check("use crate::c::D;\nfn f(x: crate::c::E) {}", &["c::D", "c::E"]);
        check("use super::c::D;\nself::f(); super::super::g()", &["a::c::D", "a::b::f", "g"]);
        check("super::f::<crate::T>(self.x, &self)", &["a::f", "T"]);
    }

    #[test]
    fn groups_are_taken_apart() {
        check(
            "use super::{c::{self, D as _, super::E}, F, g::*};",
            &["a::c", "a::c::D", "a::E", "a::F", "a::g::*"],
        );
        check("use crate::{c, d::E};", &["", "c", "d::E"]);
    }

    #[test]
    fn inline_modules_are_counted() {
        let code = "fn f() { super::x() }\nmod tests {\n    use super::*;\n}\nsuper::y()";
        check(code, &["a::x", "a::b::*", "a::y"]);
    }

    #[test]
    fn code_for_tests_is_left_out() {
        let tests = "#[cfg(test)]\n#[expect(x)]\nmod tests {\n    use crate::z::Z;\n}\n";
        check(&format!("crate::c::f();\n{tests}crate::d::g();"), &["c::f", "d::g"]);
        check("#[cfg(test)]\nuse crate::c::{D, E};\nuse crate::f::G;", &["f::G"]);
        check("#[cfg(test)]\nfn f() { if a { b() } crate::c::d() }\ncrate::e::f()", &["e::f"]);
    }

    #[test]
    fn children_begin_a_use() {
        check("mod c;\nuse c::D;\nuse std::fmt;\nc::f()", &["a::b::c::D"]);
    }

    #[test]
    fn scopes_and_other_crates_are_not_paths() {
        check("pub(crate) fn f() {}\npub(super) fn g() {}\npub(in crate::a) fn h() {}", &[]);
        check("use moeflux_io::ReadFile;\nuse my_crate::ops::Op;", &[]);
        check("for x in super::all() {}", &["a::all"]);
    }

    #[test]
    fn a_use_has_an_alias() {
        let found = paths("use super::{c::D as E, F};\nsuper::g()", &["a", "b"]);
        let aliases: Vec<_> = found.iter().map(|path| path.alias).collect();
        assert_eq!(aliases, [Some("E"), Some("F"), None]);
    }

    #[test]
    fn declared_children_are_marked_if_for_tests() {
        let code = "pub mod a;\n#[cfg(test)]\nmod b;\n#[cfg(unix)]\npub(crate) mod c;\nmod d {}";
        let found: Vec<_> = children(code).iter().map(|it| (it.name, it.is_test)).collect();
        assert_eq!(found, [("a", false), ("b", true), ("c", false)]);
    }
}
