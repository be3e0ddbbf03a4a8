//! The table of allowed dependencies between crates, compared with each `Cargo.toml`.
//!
//! Covers dependencies of every kind: normal, for tests, for builds, per target. **Invariant:** a
//! crate that is not in the table is a finding, so that adding one is a decision.

use crate::tidy::Finding;
use crate::tidy::tree::{SourceFile, Tree};

/// Every crate may use it in its tests, and none elsewhere.
const TESTING: &str = "moeflux-testing";

const ALLOWED: [(&str, &[&str]); 19] = [
    ("moeflux-io", &[]),
    // Only for its benchmark, which reads memory with the layout of weights.
    ("moeflux-kernels", &["moeflux-io"]),
    ("moeflux-threads", &[]),
    // The demo model is for its examples.
    ("moeflux", &["moeflux-demo", "moeflux-io", "moeflux-kernels", "moeflux-threads"]),
    // The demo model is for its examples.
    ("moeflux-chat", &["moeflux", "moeflux-demo", "moeflux-schedule"]),
    (
        "moeflux-cli",
        &[
            "moeflux",
            "moeflux-chat",
            "moeflux-demo",
            "moeflux-gpu",
            "moeflux-hub",
            "moeflux-io",
            "moeflux-kernels",
            "moeflux-mpi",
            "moeflux-prefix",
            "moeflux-schedule",
            "moeflux-server",
            "moeflux-wire",
        ],
    ),
    ("moeflux-demo", &[]),
    ("moeflux-gpu", &["moeflux", "moeflux-io", "moeflux-kernels"]),
    ("moeflux-hub", &["moeflux-io"]),
    ("moeflux-mpi", &["moeflux"]),
    ("moeflux-prefix", &["moeflux-io"]),
    // The demo model is for its tests.
    ("moeflux-schedule", &["moeflux", "moeflux-demo", "moeflux-prefix"]),
    // moeflux-prefix is for its tests.
    (
        "moeflux-server",
        &["moeflux", "moeflux-chat", "moeflux-prefix", "moeflux-schedule", "moeflux-wire"],
    ),
    // moeflux-chat is for its examples.
    (TESTING, &["moeflux", "moeflux-chat", "moeflux-gpu", "moeflux-io", "moeflux-kernels"]),
    ("moeflux-wire", &["moeflux", "moeflux-chat"]),
    ("moeflux-fuzz", &["moeflux-fuzz-targets"]),
    ("moeflux-fuzz-targets", &["moeflux", "moeflux-chat", "moeflux-prefix"]),
    // Runs third-party parsers on texts of moeflux-chat.
    ("moeflux-check-parsers", &[]),
    ("xtask", &[]),
];

/// Finds dependencies that the table does not allow.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter(|file| file.stem() == "Cargo");
    manifests.filter(|file| file.path.ends_with(".toml")).flat_map(check_manifest).collect()
}

fn check_manifest(file: &SourceFile) -> Vec<Finding> {
    let Some(name) = package_name(&file.text) else { return Vec::new() };
    let Some((_, allowed)) = ALLOWED.iter().find(|(it, _)| *it == name) else {
        let message = format!("crate `{name}` is not in the table of xtask/src/tidy/edges.rs");
        return vec![Finding::new(&file.path, 1, message)];
    };
    let is_refused = |it: &Dependency<'_>| match it.name {
        TESTING => !it.is_for_tests,
        used => !allowed.contains(&used) && is_ours(used),
    };
    let finding = |it: Dependency<'_>| {
        let message = format!("`{name}` may not depend on `{}`", it.name);
        Finding::new(&file.path, it.line_number, message)
    };
    dependencies(&file.text).into_iter().filter(is_refused).map(finding).collect()
}

fn is_ours(name: &str) -> bool {
    name == "xtask" || name == "moeflux" || name.starts_with("moeflux-")
}

fn package_name(manifest: &str) -> Option<&str> {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != "[package]");
    let line = lines.find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

struct Dependency<'a> {
    line_number: usize,
    /// The package's name, if it is renamed.
    name: &'a str,
    is_for_tests: bool,
}

fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let (mut is_inside, mut is_for_tests) = (false, false);
    let mut found = Vec::new();
    for (line_idx, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            let (kind, name) = header.rsplit_once('.').unwrap_or((header, ""));
            is_inside = header.ends_with("dependencies") || kind.ends_with("dependencies");
            is_for_tests = header.contains("dev-dependencies");
            if kind.ends_with("dependencies") {
                found.push(Dependency { line_number: line_idx + 1, name, is_for_tests });
            }
        } else if is_inside {
            let key = line.split(['=', '.', ' ']).next().unwrap_or_default();
            let name = package(line).unwrap_or(key);
            found.push(Dependency { line_number: line_idx + 1, name, is_for_tests });
        }
    }
    found
}

fn package(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("package")?;
    let is_key = before.is_empty() || before.ends_with(['{', ',', ' ']);
    let value = after.trim_start().strip_prefix('=')?;
    value.split('"').nth(1).filter(|_| is_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(manifest: &str, expected: &[(usize, &str)]) {
        let found = check(&Tree::of(&[("crates/x/Cargo.toml", manifest)]));
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn edges_of_the_table_and_foreign_crates_pass() {
        check_text(
            "[package]\nname = \"moeflux\"\n[dependencies]\nmoeflux-io = { workspace = true }\n\
             half = \"2\"\n[dependencies.moeflux-kernels]\nworkspace = true\n",
            &[],
        );
        check_text("[workspace.dependencies]\nmoeflux = { path = \"x\" }\n", &[]);
    }

    #[test]
    fn testing_crates_are_dev_dependencies_only() {
        let manifest =
            |kind| format!("[package]\nname = \"moeflux-io\"\n[{kind}]\n{TESTING} = {{}}");
        check_text(&manifest("dev-dependencies"), &[]);
        check_text(
            &manifest("dependencies"),
            &[(4, "`moeflux-io` may not depend on `moeflux-testing`")],
        );
    }

    #[test]
    fn other_edges_fail_in_every_form() {
        let cases = [
            "[dependencies]\nmoeflux = { workspace = true }",
            "[dev-dependencies]\nmoeflux.workspace = true",
            "[target.'cfg(unix)'.build-dependencies]\nmoeflux = \"1\"",
            "[dependencies]\nengine = { package = \"moeflux\", path = \"x\" }",
        ];
        for case in cases {
            let manifest = format!("[package]\nname = \"moeflux-io\"\n{case}\n");
            check_text(&manifest, &[(4, "`moeflux-io` may not depend on `moeflux`")]);
        }
        let manifest = "[package]\nname = \"moeflux-io\"\n[dependencies.moeflux]\npath = \"x\"\n";
        check_text(manifest, &[(3, "`moeflux-io` may not depend on `moeflux`")]);
    }

    #[test]
    fn an_unknown_crate_fails() {
        check_text(
            "[package]\nname = \"moeflux-new\"\n",
            &[(1, "crate `moeflux-new` is not in the table of xtask/src/tidy/edges.rs")],
        );
    }
}
