//! Folds long lines to fit a terminal.
//!
//! **Invariant:** no word is lost or split; a line is too long only if a single word is.

/// The default width of terminals.
const N_COLUMNS: usize = 80;

/// Width of the label of a figure.
const LABEL_WIDTH: usize = 10;

/// Folds a label and a text between words; continuation lines are aligned with the text.
pub(crate) fn folded(label: &str, text: &str) -> Vec<String> {
    let indent = " ".repeat(label.chars().count());
    let mut lines = Vec::new();
    let mut line = label.to_owned();
    let mut is_begun = false;
    for word in text.split(' ') {
        let blank = usize::from(is_begun);
        if is_begun && line.chars().count() + blank + word.chars().count() > N_COLUMNS {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    lines.push(line);
    lines
}

/// Folds a line of figures, whose label has ten columns.
pub(crate) fn labelled(line: &str) -> Vec<String> {
    let (label, text) = line.split_at_checked(LABEL_WIDTH).unwrap_or(("", line));
    folded(label, text)
}

/// Folds a list item.
pub(crate) fn point(text: &str) -> Vec<String> {
    folded("* ", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_at_80_columns() {
        assert_eq!(point("a point"), ["* a point"]);
        assert_eq!(folded("  label  ", ""), ["  label  "]);
        let [short, long] = [35, 36].map(|n| format!("{} {}", "a".repeat(35), "\u{e9}".repeat(n)));
        assert_eq!(folded("  label  ", &short).len(), 1);
        let [first, second] = folded("  label  ", &long).try_into().unwrap();
        assert_eq!(first, format!("  label  {}", "a".repeat(35)));
        assert_eq!(second, format!("         {}", "\u{e9}".repeat(36)));
        assert_eq!(point(&"a".repeat(99)).len(), 1);
    }
}
