//! Crates and commands that use only the stable names of the engine, like any other program.
//!
//! If they lack a name, other programs lack it too. Tests may use `moeflux::provider`.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

/// Paths that must not name `moeflux::provider`.
const USERS: [&str; 10] = [
    "crates/moeflux-chat/src/",
    "crates/moeflux-schedule/src/",
    "crates/moeflux-server/src/",
    "crates/moeflux-wire/src/",
    "crates/moeflux-cli/src/commands/chat/",
    "crates/moeflux-cli/src/commands/generate/",
    "crates/moeflux-cli/src/commands/serve/",
    "crates/moeflux-cli/src/options/prompt.rs",
    "crates/moeflux-cli/src/options/sampling.rs",
    "crates/moeflux/examples/",
];

/// Exceptions: files that consist of tests.
const TESTS: [&str; 3] = ["/tests/", "/tests.rs", "/testing.rs"];

/// Finds uses of the unstable names.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let is_user = USERS.iter().any(|start| file.path.starts_with(start))
        && !TESTS.iter().any(|part| file.path.contains(part));
    if !is_user {
        return Vec::new();
    }
    let code = file.code.split("mod tests {").next().unwrap_or_default();
    let places = code.match_indices("moeflux::provider");
    let finding = |(at, _): (usize, &str)| {
        let message = "`moeflux::provider` promises nothing: use the names at the crate's root";
        Finding::new(&file.path, lex::line_number(code, at), message)
    };
    places.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n_findings(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn users_of_the_engine_name_no_unstable_path() {
        let code = "use moeflux::provider::io::Clock;\n";
        assert_eq!(n_findings("crates/moeflux-chat/src/chat.rs", code), 1);
        assert_eq!(n_findings("crates/moeflux-cli/src/commands/plan/mod.rs", code), 0);
        assert_eq!(n_findings("crates/moeflux-chat/src/format/tests.rs", code), 0);
        let after = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n    {code}}}\n");
        assert_eq!(n_findings("crates/moeflux-chat/src/chat.rs", &after), 0);
    }
}
