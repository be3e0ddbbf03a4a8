//! Runs all rules on a tree of files. Each rule is a function of the whole tree, in its own file.
//!
//! **Invariant:** rules read text only; checks that need types are left to clippy. A rule that
//! cannot judge a construct rejects it instead of guessing.

mod lex;
mod paths;
mod tree;
mod attributes;
mod banned;
mod diary;
mod edges;
mod face;
mod files;
mod flags;
mod header;
mod kernels;
mod layers;
mod map;
mod names;
mod numbers;
mod length;
mod opens;
mod ops;
mod prose;
mod walls;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::tidy::tree::Tree;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line_number: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line_number: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line_number, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line_number, self.message)
    }
}

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 17] = [
    layers::check,
    edges::check,
    header::check,
    diary::check,
    length::check,
    walls::check,
    ops::check,
    kernels::check,
    files::check,
    attributes::check,
    banned::check,
    opens::check,
    map::check,
    prose::check,
    flags::check,
    face::check,
    names::check,
];

/// Returns the repository that this program was built from.
pub(crate) fn repository_root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Returns the findings of all rules, by path and line.
pub(crate) fn run(root: &Path) -> Result<Vec<Finding>, String> {
    let tree = Tree::read(root)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let findings = run(&repository_root()).unwrap();
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    #[test]
    fn every_rule_file_is_used() {
        let tree = Tree::read(&repository_root()).unwrap();
        let own = tree.get("xtask/src/tidy/mod.rs").unwrap();
        let helpers = ["mod", "lex", "numbers", "paths", "tree"];
        for file in tree.under("xtask/src/tidy/") {
            let name = file.stem();
            let is_rule = !helpers.contains(&name);
            assert!(!is_rule || own.code.contains(&format!("{name}::check")), "{name} is not run");
        }
    }
}
