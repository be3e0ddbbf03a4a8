//! Combines matches and the text between them into pieces, like the library's `split`.
//!
//! **Invariant:** at most one range is held back. Works on ranges; knows no text and no pattern.

use tokenizers::Offsets;
use tokenizers::tokenizer::SplitDelimiterBehavior as Behavior;

/// The state of combining ranges into pieces.
#[derive(Debug)]
pub(super) struct MatchGroups {
    behavior: Behavior,
    /// Range that the next one may still join.
    pending: Option<Offsets>,
    is_last_match: bool,
}

impl MatchGroups {
    pub(super) fn new(behavior: Behavior) -> Self {
        Self { behavior, pending: None, is_last_match: false }
    }

    /// Adds the range after the previous one. A range that is returned is final.
    pub(super) fn add(&mut self, range: Offsets, is_match: bool) -> Option<Offsets> {
        let is_last_match = std::mem::replace(&mut self.is_last_match, is_match);
        let joins = match self.behavior {
            Behavior::Removed => return (!is_match).then_some(range),
            Behavior::Isolated => return Some(range),
            Behavior::Contiguous => is_match == is_last_match,
            Behavior::MergedWithPrevious => is_match && !is_last_match,
            Behavior::MergedWithNext => !is_match && is_last_match,
        };
        match &mut self.pending {
            Some(pending) if joins => {
                pending.1 = range.1;
                None
            }
            pending => pending.replace(range),
        }
    }

    /// Returns the last piece.
    pub(super) fn end(&mut self) -> Option<Offsets> {
        self.pending.take()
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::NormalizedString;

    use super::*;

    fn split(text: &str, behavior: Behavior) -> Vec<&str> {
        let mut groups = MatchGroups::new(behavior);
        let mut found = Vec::new();
        let mut end = 0;
        for (start, mark) in text.match_indices('-') {
            if end < start {
                found.extend(groups.add((end, start), false));
            }
            end = start + mark.len();
            found.extend(groups.add((start, end), true));
        }
        if end < text.len() {
            found.extend(groups.add((end, text.len()), false));
        }
        found.extend(groups.end());
        found.into_iter().map(|(start, end)| &text[start..end]).collect()
    }

    /// Compares all texts of `a` and `-` with the library, which stores all matches.
    #[test]
    fn pieces_are_those_of_the_library() {
        let behaviors = [
            Behavior::Removed,
            Behavior::Isolated,
            Behavior::Contiguous,
            Behavior::MergedWithPrevious,
            Behavior::MergedWithNext,
        ];
        for code in 1_u32..1 << 9 {
            let n_characters = code.ilog2();
            let text: String =
                (0..n_characters).map(|bit| if code >> bit & 1 == 1 { '-' } else { 'a' }).collect();
            for behavior in behaviors {
                let whole = NormalizedString::from(text.as_str());
                let expected = whole.split('-', behavior).unwrap();
                let expected: Vec<&str> = expected
                    .iter()
                    .map(NormalizedString::get)
                    .filter(|it| !it.is_empty())
                    .collect();
                let found = split(&text, behavior);
                assert_eq!(found, expected, "{text} {behavior:?}");
            }
        }
    }
}
