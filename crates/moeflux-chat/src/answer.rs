//! Tells an answer's thoughts from its text, as the text comes.
//!
//! A thought stands between `<think>` and `</think>` at the start of an answer; the template may
//! have written the first of the two. Blank space around a thought belongs to the markers.
//! **Invariant:** how the text is cut into pieces does not matter; no part of a marker comes out;
//! markers that are not at the start are text. Knows tokens only as names of the two markers.

use moeflux::{TokenId, Tokenizer};

pub(crate) const OPEN: &str = "<think>";
pub(crate) const CLOSE: &str = "</think>";

/// Behind more blank space, a marker is text: so much is held back at the start of an answer.
const BLANK_BYTES_MAX: usize = 64;

/// What the model was given to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStart {
    /// Nothing: a thought may come first.
    Open,
    /// The start of a thought.
    Thought,
    /// Text, or a model without thoughts.
    Text,
}

/// The tokens of the two markers where the tokenizer counts them among those that are not shown.
///
/// A [`moeflux::Generation`] gives no text for these: whoever feeds an [`AnswerReader`] asks here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenMarkers {
    open: Option<TokenId>,
    close: Option<TokenId>,
}

impl HiddenMarkers {
    /// Those of a model.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let hidden = |text| tokenizer.id_of(text).filter(|token| tokenizer.is_special(*token));
        Self { open: hidden(OPEN), close: hidden(CLOSE) }
    }

    /// The text of a token, if it is one of them.
    #[must_use]
    pub fn text(self, token: TokenId) -> Option<&'static str> {
        match Some(token) {
            token if token == self.open => Some(OPEN),
            token if token == self.close => Some(CLOSE),
            _ => None,
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// Of the thought before the answer.
    Thought(String),
    /// Of the answer itself.
    Text(String),
    /// A call of an offered tool begins.
    Call {
        /// The tool's [`crate::Tool::name`].
        name: String,
        /// How the model itself identifies the call, in formats where it does.
        id: Option<String>,
    },
    /// Of the arguments of the call that began last: all of them together are one JSON object.
    Arguments(String),
    /// The arguments of the call are whole.
    CallEnd,
}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Whether a thought comes first is not known yet.
    Start,
    /// In a thought.
    Thought,
    /// Behind a thought; what came since is blank.
    BehindThought,
    /// In the text.
    Text,
}

/// An answer's text on its way to the client.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    state: State,
    /// Text that may still become a marker, or blank space that may belong to one.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    MayOpen,
    BeforeThought,
    InThought,
    BehindThought,
    InText,
}

impl AnswerReader {
    /// A reader for an answer that begins like this.
    #[must_use]
    pub fn new(start: AnswerStart) -> Self {
        let state = match start {
            AnswerStart::Open => State::MayOpen,
            AnswerStart::Thought => State::BeforeThought,
            AnswerStart::Text => State::InText,
        };
        Self { state, held: String::new() }
    }

    /// How far the answer has come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self.state {
            State::MayOpen => Stage::Start,
            State::BeforeThought | State::InThought => Stage::Thought,
            State::BehindThought => Stage::BehindThought,
            State::InText => Stage::Text,
        }
    }

    /// What is certain, now that this text came: at most a thought, then text.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while let Some(next) = self.step(&mut pieces) {
            self.state = next;
        }
        pieces
    }

    /// What was held back: the answer is over.
    pub fn finish(&mut self) -> Option<Piece> {
        let held = std::mem::take(&mut self.held);
        let thought = match self.state {
            State::BehindThought => return None,
            State::MayOpen | State::InText => return some(Piece::Text, &held),
            State::BeforeThought => held.trim(),
            State::InThought => held.trim_end(),
        };
        some(Piece::Thought, thought)
    }

    /// Takes from the held text what its state allows; the next state if there is more to take.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> Option<State> {
        match self.state {
            State::MayOpen => self.open(),
            State::BeforeThought => {
                self.drop_blank();
                (!self.held.is_empty()).then_some(State::InThought)
            }
            State::InThought => self.think(pieces),
            State::BehindThought => {
                self.drop_blank();
                (!self.held.is_empty()).then_some(State::InText)
            }
            State::InText => {
                pieces.extend(some(Piece::Text, &self.held));
                self.held.clear();
                None
            }
        }
    }

    fn open(&mut self) -> Option<State> {
        let text = self.held.trim_start();
        if self.held.len() - text.len() > BLANK_BYTES_MAX {
            return Some(State::InText);
        }
        // A template may open a thought in a way that cannot be seen: then its end comes first.
        for (marker, state) in [(OPEN, State::BeforeThought), (CLOSE, State::BehindThought)] {
            if let Some(rest) = text.strip_prefix(marker) {
                self.held = rest.to_owned();
                return Some(state);
            }
        }
        let may_open = OPEN.starts_with(text) || CLOSE.starts_with(text);
        (!may_open).then_some(State::InText)
    }

    fn think(&mut self, pieces: &mut Vec<Piece>) -> Option<State> {
        let Some(end) = self.held.find(CLOSE) else {
            let n_certain = self.held.len() - n_unfinished(&self.held, CLOSE);
            let thought = self.held[..n_certain].trim_end();
            let n_bytes = thought.len();
            pieces.extend(some(Piece::Thought, thought));
            self.held.drain(..n_bytes);
            return None;
        };
        pieces.extend(some(Piece::Thought, self.held[..end].trim_end()));
        self.held.drain(..end + CLOSE.len());
        Some(State::BehindThought)
    }

    fn drop_blank(&mut self) {
        let n_blank = self.held.len() - self.held.trim_start().len();
        self.held.drain(..n_blank);
    }
}

fn some(kind: fn(String) -> Piece, text: &str) -> Option<Piece> {
    (!text.is_empty()).then(|| kind(text.to_owned()))
}

/// Length of the longest end of the text that begins the marker.
fn n_unfinished(text: &str, marker: &str) -> usize {
    let most = text.len().min(marker.len() - 1);
    let is_end = |n: &usize| text.as_bytes().ends_with(&marker.as_bytes()[..*n]);
    (1..=most).rev().find(is_end).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(start: AnswerStart, pieces: &[&str]) -> (String, String) {
        let mut reader = AnswerReader::new(start);
        let mut found: Vec<Piece> = pieces.iter().flat_map(|it| reader.push(it)).collect();
        found.extend(reader.finish());
        let (mut thought, mut text) = (String::new(), String::new());
        for piece in found {
            match piece {
                Piece::Thought(it) => {
                    assert!(text.is_empty(), "a thought behind text");
                    thought.push_str(&it);
                }
                Piece::Text(it) => text.push_str(&it),
                other => panic!("no tool is offered: {other:?}"),
            }
        }
        (thought, text)
    }

    /// Whole, cut at each two places, and character by character.
    #[track_caller]
    fn check(start: AnswerStart, answer: &str, thought: &str, text: &str) {
        let expected = (thought.to_owned(), text.to_owned());
        let cuts: Vec<usize> =
            (0..=answer.len()).filter(|cut| answer.is_char_boundary(*cut)).collect();
        for &first in &cuts {
            for &second in cuts.iter().filter(|&&it| it >= first) {
                let pieces = [&answer[..first], &answer[first..second], &answer[second..]];
                assert_eq!(joined(start, &pieces), expected, "cut at {first} and {second}");
            }
        }
        let characters: Vec<&str> = cuts.windows(2).map(|it| &answer[it[0]..it[1]]).collect();
        assert_eq!(joined(start, &characters), expected, "by characters");
    }

    #[test]
    fn a_thought_at_the_start_is_no_text() {
        use AnswerStart::Open;
        check(Open, "<think>\nI add.\n</think>\n\n  Four.\n", "I add.", "Four.\n");
        check(Open, " \n<think>a</think>b", "a", "b");
        check(Open, "<think>\n\n</think>\n\nFour.", "", "Four.");
        check(Open, "<think></think><tool_call>", "", "<tool_call>");
        check(Open, "</think>\n\nFour.", "", "Four.");
        check(Open, "<think>a < b </thin </think >c</think>d", "a < b </thin </think >c", "d");
        check(Open, "<think>\u{e9}\u{8a9e} </think>\u{1f600}", "\u{e9}\u{8a9e}", "\u{1f600}");
        check(Open, "<think>a\n\nb <think> c</think>d</think>", "a\n\nb <think> c", "d</think>");
    }

    #[test]
    fn everything_else_is_text() {
        use AnswerStart::{Open, Text};
        for answer in [
            "",
            "  Four.",
            " \n",
            "<",
            "<thin",
            "</thin",
            "<thinking>a</thinking>",
            "a <think>b</think> c",
            "a</think>b",
            "\u{e9}<think></think>",
        ] {
            check(Open, answer, "", answer);
        }
        check(Text, "<think>a</think>b", "", "<think>a</think>b");
        check(Text, "  a ", "", "  a ");
        let blank = " ".repeat(BLANK_BYTES_MAX);
        check(Open, &format!("{blank}<think>a</think>b"), "a", "b");
        let behind = format!("{blank} <think>a</think>b");
        check(Open, &behind, "", &behind);
    }

    #[test]
    fn a_thought_that_does_not_end_stays_one() {
        use AnswerStart::{Open, Thought};
        check(Open, "<think>", "", "");
        check(Open, "<think>\nI add.\n", "I add.", "");
        check(Open, "<think>I add </thin", "I add </thin", "");
        check(Thought, " I add.", "I add.", "");
        check(Thought, "\nI add.\n</think>\n\nFour.", "I add.", "Four.");
        check(Thought, "\n</think>\n\nFour.", "", "Four.");
        check(Thought, "<think>a</think>b", "<think>a", "b");
        check(Thought, " </", "</", "");
        check(Thought, "", "", "");
    }

    #[test]
    fn it_knows_how_far_the_answer_has_come() {
        let mut reader = AnswerReader::new(AnswerStart::Open);
        let mut stage_behind = |text: &str| {
            reader.push(text);
            reader.stage()
        };
        assert_eq!(stage_behind(" <thi"), Stage::Start);
        assert_eq!(stage_behind("nk>"), Stage::Thought);
        assert_eq!(stage_behind("a</thi"), Stage::Thought);
        assert_eq!(stage_behind("nk>"), Stage::BehindThought);
        assert_eq!(stage_behind("\n\n"), Stage::BehindThought);
        assert_eq!(stage_behind("b"), Stage::Text);
        assert_eq!(AnswerReader::new(AnswerStart::Thought).stage(), Stage::Thought);
        assert_eq!(AnswerReader::new(AnswerStart::Text).stage(), Stage::Text);
    }
}
