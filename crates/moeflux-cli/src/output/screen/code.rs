//! Detects lines of code in plain text: such lines are not wrapped at blanks.
//!
//! The text is unchanged and keeps its markup; only lines inside fences, and lines that begin with
//! a tab or four blanks, are marked. **Invariant:** the result does not depend on how the text is
//! split.

use crate::output::screen::style::{Span, Style, add};

/// Blanks before a line of code.
const INDENT: usize = 4;

/// Marks of a fence.
const FENCE_MARKS: usize = 3;

/// The state of the text shown so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CodeLines {
    is_in_fence: bool,
    line: LineKind,
}

/// The known part of a line.
#[derive(Clone, Copy, Debug)]
enum LineKind {
    /// Only these were read so far.
    Start {
        n_blanks: usize,
        n_marks: usize,
    },
    Prose,
    Code,
}

impl Default for LineKind {
    fn default() -> Self {
        Self::Start { n_blanks: 0, n_marks: 0 }
    }
}

impl CodeLines {
    /// Returns the text with code marked by its style.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        for letter in text.chars() {
            self.line = self.after(letter);
            let is_code = self.is_in_fence || !matches!(self.line, LineKind::Prose);
            let style = if is_code { Style::CODE } else { Style::PLAIN };
            add(&mut spans, style, letter.encode_utf8(&mut [0; 4]));
        }
        spans
    }

    fn after(&mut self, letter: char) -> LineKind {
        match (self.line, letter) {
            (_, '\n') => LineKind::default(),
            (LineKind::Start { n_blanks, n_marks: 0 }, ' ') if n_blanks + 1 < INDENT => {
                LineKind::Start { n_blanks: n_blanks + 1, n_marks: 0 }
            }
            (LineKind::Start { n_marks: 0, .. }, ' ' | '\t') => LineKind::Code,
            (LineKind::Start { n_blanks, n_marks }, '`') if n_marks + 1 < FENCE_MARKS => {
                LineKind::Start { n_blanks, n_marks: n_marks + 1 }
            }
            (LineKind::Start { .. }, '`') => {
                self.is_in_fence = !self.is_in_fence;
                LineKind::Code
            }
            (LineKind::Start { .. }, _) => LineKind::Prose,
            (line, _) => line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_found_in_any_chunks() {
        let text = "a b\n    c d\n  e f\n\tg h\n```rust\ni j\n```\n`k` l\n";
        let mut whole = CodeLines::default();
        let mut code = String::new();
        let mut all = String::new();
        for Span { style, text } in whole.push(text) {
            all += &text;
            if style == Style::CODE {
                code += &text;
            }
        }
        assert_eq!(all, text);
        let lines: Vec<&str> = code.lines().collect();
        let expected = ["", "    c d", "  ", "\tg h", "```rust", "i j", "```", "`"];
        assert_eq!(lines, expected);
        let mut cut = CodeLines::default();
        let mut spans = Vec::new();
        for letter in text.chars() {
            for Span { style, text } in cut.push(&letter.to_string()) {
                add(&mut spans, style, &text);
            }
        }
        assert_eq!(spans, CodeLines::default().push(text));
    }
}
