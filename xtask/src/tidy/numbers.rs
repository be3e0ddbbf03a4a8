//! Reads the recorded numbers of `xtask/*.txt`: `name number` on each line; `#` begins a comment.
//!
//! **Invariant:** an unreadable line is a finding, never skipped silently.

use crate::tidy::Finding;
use crate::tidy::tree::Tree;

/// A recorded number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedNumber {
    /// Its subject.
    pub(super) name: String,
    /// The number.
    pub(super) value: usize,
    /// The line that records it.
    pub(super) line_number: usize,
}

/// Reads the entries of the file at `path`, with findings for unreadable lines.
pub(super) fn read(tree: &Tree, path: &str) -> (Vec<RecordedNumber>, Vec<Finding>) {
    let mut entries = Vec::new();
    let mut findings = Vec::new();
    let text = tree.get(path).map_or("", |file| &file.text);
    for (line_idx, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default().trim();
        let line_number = line_idx + 1;
        match (content, entry(content)) {
            ("", _) => {}
            (_, Some((name, value))) => entries.push(RecordedNumber { name, value, line_number }),
            _ => findings.push(Finding::new(path, line_number, "expected `name number`")),
        }
    }
    (entries, findings)
}

fn entry(content: &str) -> Option<(String, usize)> {
    let (name, value) = content.rsplit_once(' ')?;
    Some((name.trim().to_owned(), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_nonsense_is_found() {
        let tree = Tree::of(&[("n.txt", "# why\n\na.rs 12 # so\nb.rs\n")]);
        let (entries, findings) = read(&tree, "n.txt");
        assert_eq!(
            entries,
            [RecordedNumber { name: "a.rs".to_owned(), value: 12, line_number: 3 }]
        );
        assert_eq!(findings, [Finding::new("n.txt", 4, "expected `name number`")]);
    }

    #[test]
    fn a_missing_file_is_empty() {
        assert_eq!(read(&Tree::of(&[]), "n.txt"), (vec![], vec![]));
    }
}
