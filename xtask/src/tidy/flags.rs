//! Libraries name no command-line options: a program that uses them may have others.
//!
//! A library's error describes the remedy; the program with options names them. The command's own
//! tools may be named where nothing else does the same.

use crate::tidy::Finding;
use crate::tidy::lex;
use crate::tidy::tree::{SourceFile, Tree};

/// Crates that are not programs.
const LIBRARIES: [&str; 13] = [
    "crates/moeflux/src/",
    "crates/moeflux-chat/src/",
    "crates/moeflux-demo/src/",
    "crates/moeflux-gpu/src/",
    "crates/moeflux-hub/src/",
    "crates/moeflux-io/src/",
    "crates/moeflux-kernels/src/",
    "crates/moeflux-mpi/src/",
    "crates/moeflux-prefix/src/",
    "crates/moeflux-schedule/src/",
    "crates/moeflux-server/src/",
    "crates/moeflux-threads/src/",
    "crates/moeflux-wire/src/",
];

/// The tool that writes and compares the checksums of a directory that is not packed.
const DEEP: &str = "`moeflux doctor --deep`";

/// Finds literals of libraries that contain an option.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let is_of_library = |file: &&SourceFile| LIBRARIES.iter().any(|it| file.path.starts_with(it));
    tree.rust().filter(is_of_library).flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let text = file.text.replace(DEEP, &" ".repeat(DEEP.len()));
    let finding = |(at, _): (usize, &str)| {
        let option = text[at + 2..].chars().next().is_some_and(|it| it.is_ascii_lowercase());
        let is_begun = text[..at].chars().next_back().is_some_and(lex::is_word);
        let is_literal = file.is_literal(at);
        (option && !is_begun && is_literal).then(|| {
            let message = "a library names an option: put what helps into the error, and let the \
                           command name its options";
            Finding::new(&file.path, lex::line_number(&text, at), message)
        })
    };
    text.match_indices("--").filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, expected_lines: &[usize]) {
        let found = check(&Tree::of(&[(path, text)]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line_number).collect();
        assert_eq!(lines, expected_lines);
    }

    #[test]
    fn options_in_messages_are_found() {
        let text = "f(\"give --memory\");\n\"a\\\n --chunk\"; \"(--a)\"";
        check_text("crates/moeflux-gpu/src/a.rs", text, &[1, 3, 3]);
    }

    #[test]
    fn comments_dashes_and_programs_pass() {
        let text = "// --memory\nf(\"a -- b\", \"a--b\", a - -b);\n\"see `moeflux doctor --deep`\"";
        check_text("crates/moeflux/src/a.rs", text, &[]);
        check_text("crates/moeflux-cli/src/a.rs", "\"give --memory\"", &[]);
    }
}
