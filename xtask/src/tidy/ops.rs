//! Every operation exists in the reference backend, and in the suite that compares backends.
//!
//! **Invariant:** an operation that only one backend knows cannot be merged.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

const OPS: &str = "crates/moeflux/src/ops/mod.rs";
const PLACES: [&str; 2] =
    ["crates/moeflux/src/backend/reference/", "crates/moeflux-testing/src/ops/"];

/// Finds variants of `Op` that are missing in one of the places.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some((file, variants)) = tree.get(OPS).and_then(|file| Some((file, variants(file)?)))
    else {
        return vec![Finding::new(OPS, 1, "`pub enum Op` is not here: adapt this rule")];
    };
    let mut findings = Vec::new();
    for (at, variant) in variants {
        let name = format!("Op::{variant}");
        for place in PLACES {
            let is_named = |file: &SourceFile| lex::words(&file.code, &name).next().is_some();
            if !tree.under(place).any(is_named) {
                let message = format!("`{name}` is not in {place}");
                findings.push(Finding::new(OPS, lex::line_number(&file.code, at), message));
            }
        }
    }
    findings
}

fn variants(file: &SourceFile) -> Option<Vec<(usize, &str)>> {
    let open_at = file.code.find("pub enum Op {")? + "pub enum Op ".len();
    let body = lex::bracketed(&file.code, open_at);
    let mut found = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < body.len() {
        let word = lex::leading_word(&body[at..]);
        match body.as_bytes()[at] {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth -= 1,
            _ if depth == 0 && !word.is_empty() => found.push((open_at + 1 + at, word)),
            _ => {}
        }
        at += word.len().max(1);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENUM: &str =
        "/// Op.\npub enum Op {\n    /// See.\n    Add(Add),\n    #[cfg(x)]\n    Mul,\n}\n";

    #[track_caller]
    fn check_places(reference: &str, suite: &str, expected: &[(usize, &str)]) {
        let reference = ("crates/moeflux/src/backend/reference/a.rs", reference);
        let found = check(&Tree::of(&[
            (OPS, ENUM),
            reference,
            ("crates/moeflux-testing/src/ops/a.rs", suite),
        ]));
        let found: Vec<(usize, &str)> =
            found.iter().map(|finding| (finding.line_number, finding.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn ops_in_both_places_pass() {
        check_places("Op::Add(op) => f(op), Op::Mul => g()", "[Op::Add(a), Op::Mul]", &[]);
    }

    #[test]
    fn missing_ops_fail() {
        let suite = "`Op::Mul` is not in crates/moeflux-testing/src/ops/";
        check_places("Op::Add Op::Mul", "Op::Add // Op::Mul", &[(6, suite)]);
        let reference = "`Op::Add` is not in crates/moeflux/src/backend/reference/";
        check_places("Op::Addition Op::Mul", "Op::Add Op::Mul", &[(4, reference)]);
    }

    #[test]
    fn a_lost_enum_is_found() {
        assert_eq!(check(&Tree::of(&[(OPS, "enum Operation {}")])).len(), 1);
    }
}
