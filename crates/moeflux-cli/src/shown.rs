//! An answer as it is shown: thoughts between their markers, an empty thought not at all.
//!
//! **Invariant:** what the model wrote is shown, but for blank space around thoughts.

use moeflux::{TokenId, Tokenizer};
use moeflux_chat::{AnswerReader, AnswerStart, HiddenMarkers, Piece};

/// An answer's text on its way to the reader.
#[derive(Debug)]
pub(crate) struct Shown {
    /// `None` for text that is to stay as it is.
    reader: Option<AnswerReader>,
    markers: HiddenMarkers,
    is_in_thought: bool,
}

impl Shown {
    /// For an answer of a chat.
    pub(crate) fn chat(start: AnswerStart, tokenizer: &Tokenizer) -> Self {
        let markers = HiddenMarkers::of(tokenizer);
        Self { reader: Some(AnswerReader::new(start)), markers, is_in_thought: false }
    }

    /// For text that is to stay as it is.
    pub(crate) fn unchanged() -> Self {
        Self { reader: None, markers: HiddenMarkers::default(), is_in_thought: false }
    }

    /// What is shown now that this token came, of which the text follows.
    pub(crate) fn token(&mut self, token: TokenId) -> String {
        match self.markers.text(token) {
            Some(marker) => self.text(marker),
            None => String::new(),
        }
    }

    /// What is shown now that this text came.
    pub(crate) fn text(&mut self, text: &str) -> String {
        match &mut self.reader {
            None => text.to_owned(),
            Some(reader) => {
                let pieces = reader.push(text);
                self.shown(pieces)
            }
        }
    }

    /// What is shown at the end.
    pub(crate) fn finish(&mut self) -> String {
        let last = self.reader.as_mut().map(AnswerReader::finish);
        self.shown(last.unwrap_or_default())
    }

    fn shown(&mut self, pieces: impl IntoIterator<Item = Piece>) -> String {
        let mut shown = String::new();
        for piece in pieces {
            let (is_thought, text) = match &piece {
                Piece::Thought(text) => (true, text),
                Piece::Text(text) => (false, text),
                _ => continue,
            };
            match (self.is_in_thought, is_thought) {
                (false, true) => shown.push_str("<think>\n"),
                (true, false) => shown.push_str("\n</think>\n\n"),
                _ => {}
            }
            self.is_in_thought = is_thought;
            shown.push_str(text);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: AnswerStart, pieces: &[&str], expected: &str) {
        let reader = Some(AnswerReader::new(start));
        let markers = HiddenMarkers::default();
        let mut shown = Shown { reader, markers, is_in_thought: false };
        let mut found: String = pieces.iter().map(|it| shown.text(it)).collect();
        found += &shown.finish();
        assert_eq!(found, expected, "{pieces:?}");
    }

    #[test]
    fn thoughts_are_between_markers_and_empty_ones_are_not_shown() {
        use AnswerStart::{Open, Text, Thought};
        check(Open, &["<think>", "\n\n</think>", "\n\nFour."], "Four.");
        check(Open, &["Four", "."], "Four.");
        check(
            Open,
            &["<think>\nI ", "add.\n</think>\n\nFour."],
            "<think>\nI add.\n</think>\n\nFour.",
        );
        check(Thought, &["I add.", "\n</think>\n\nFour."], "<think>\nI add.\n</think>\n\nFour.");
        check(Thought, &["I add"], "<think>\nI add");
        check(Text, &[" <think>"], " <think>");
        let mut unchanged = Shown::unchanged();
        assert_eq!(unchanged.text("<think></think> a") + &unchanged.finish(), "<think></think> a");
    }
}
