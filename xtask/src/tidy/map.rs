//! The map in `ARCHITECTURE.md` names every crate, and every module of the engine in order.
//!
//! A row of a table begins with the name: "| `spec` |".

use crate::tidy::Finding;
use crate::tidy::layers;
use crate::tidy::tree::Tree;

const MAP: &str = "ARCHITECTURE.md";

/// Finds names that are missing in the map, or out of order.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let rows: Vec<&str> = tree.get(MAP).map_or("", |file| &file.text).lines().collect();
    let row_of = |name: &str| rows.iter().position(|row| row.starts_with(&format!("| `{name}` |")));
    let mut findings = Vec::new();
    let mut previous = 0;
    for module in layers::modules(tree) {
        match row_of(module) {
            None => findings.push(Finding::new(MAP, 1, format!("no row for module `{module}`"))),
            Some(row_idx) if row_idx < previous => {
                let message = format!("`{module}` stands elsewhere in lib.rs");
                findings.push(Finding::new(MAP, row_idx + 1, message));
            }
            Some(row_idx) => previous = row_idx,
        }
    }
    let crates = tree.under("crates/").filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
    for name in crates.filter_map(|folder| folder.strip_prefix("crates/")) {
        if row_of(name).is_none() {
            findings.push(Finding::new(MAP, 1, format!("no row for crate `{name}`")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_map(map: &str, expected: &[(usize, &str)]) {
        let lib = ("crates/moeflux/src/lib.rs", "//! x\npub mod ids;\nmod spec;\n");
        let found = check(&Tree::of(&[(MAP, map), lib, ("crates/moeflux-io/Cargo.toml", "")]));
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_whole_map_passes() {
        check_map("| `moeflux-io` | x |\n\n| `ids` | x |\n| more |\n| `spec` | x |\n", &[]);
    }

    #[test]
    fn gaps_and_another_order_fail() {
        let no_crate = (1, "no row for crate `moeflux-io`");
        check_map("| `ids` | x |\n", &[(1, "no row for module `spec`"), no_crate]);
        let map = "| `spec` |\n| `ids` |\n";
        check_map(map, &[(1, "`spec` stands elsewhere in lib.rs"), no_crate]);
    }
}
