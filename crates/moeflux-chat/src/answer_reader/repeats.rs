//! Ends an answer that repeats a call.
//!
//! A model that is made to call tools may repeat the same call until its tokens are used up.
//! **Invariant:** of two calls with the same name and arguments only the first is passed on, and
//! nothing after it. Everything else is passed on unchanged, and held back only while it may still
//! be a repetition. Whitespace between the tokens of a JSON object is ignored.

use crate::piece::AnswerPiece;

/// Drops repeated calls of an answer; holds its calls so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepeatFilter {
    completed: Vec<SeenCall>,
    current: Option<SeenCall>,
    /// Whether the current call is held back.
    is_held_back: bool,
    is_over: bool,
}

/// A call of the answer, as far as it is known.
#[derive(Clone, Debug)]
struct SeenCall {
    name: String,
    id: Option<String>,
    arguments: String,
    /// The arguments without insignificant whitespace.
    normalised: NormalisedArguments,
}

/// Arguments in the form in which they are compared.
#[derive(Clone, Debug, Default)]
struct NormalisedArguments {
    text: String,
    is_in_string: bool,
    is_escaped: bool,
}

impl RepeatFilter {
    /// Returns whether a call was repeated.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns these pieces without repetitions.
    pub(crate) fn filter(&mut self, pieces: Vec<AnswerPiece>) -> Vec<AnswerPiece> {
        let mut left = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if self.is_over {
                break;
            }
            self.take(piece, &mut left);
        }
        left
    }

    fn take(&mut self, piece: AnswerPiece, left: &mut Vec<AnswerPiece>) {
        match piece {
            AnswerPiece::Call { name, id } => {
                let call = SeenCall {
                    name,
                    id,
                    arguments: String::new(),
                    normalised: NormalisedArguments::default(),
                };
                self.is_held_back = self.may_repeat(&call);
                self.current = Some(call.clone());
                if !self.is_held_back {
                    left.push(AnswerPiece::Call { name: call.name, id: call.id });
                }
            }
            AnswerPiece::Arguments(text) => {
                let Some(mut call) = self.current.take() else { return };
                call.arguments.push_str(&text);
                call.normalised.push(&text);
                if !self.is_held_back {
                    left.push(AnswerPiece::Arguments(text));
                } else if !self.may_repeat(&call) {
                    self.is_held_back = false;
                    left.extend(call.pieces());
                }
                self.current = Some(call);
            }
            AnswerPiece::CallEnd => {
                let Some(call) = self.current.take() else { return };
                if self.is_held_back && self.completed.iter().any(|it| it.is_same(&call)) {
                    self.is_over = true;
                    return;
                }
                self.release(&call, left);
                left.push(AnswerPiece::CallEnd);
                self.completed.push(call);
            }
            AnswerPiece::CallCut => {
                if let Some(call) = self.current.take() {
                    self.release(&call, left);
                }
                left.push(AnswerPiece::CallCut);
            }
            other => left.push(other),
        }
    }

    fn release(&mut self, call: &SeenCall, left: &mut Vec<AnswerPiece>) {
        if std::mem::take(&mut self.is_held_back) {
            left.extend(call.pieces());
        }
    }

    fn may_repeat(&self, call: &SeenCall) -> bool {
        let begins = |it: &SeenCall| it.normalised.text.starts_with(&call.normalised.text);
        self.completed.iter().any(|it| it.name == call.name && begins(it))
    }
}

impl SeenCall {
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.normalised.text == other.normalised.text
    }

    fn pieces(&self) -> impl Iterator<Item = AnswerPiece> {
        let call = AnswerPiece::Call { name: self.name.clone(), id: self.id.clone() };
        let arguments = Some(self.arguments.clone()).filter(|it| !it.is_empty());
        std::iter::once(call).chain(arguments.map(AnswerPiece::Arguments))
    }
}

impl NormalisedArguments {
    fn push(&mut self, text: &str) {
        for c in text.chars() {
            let is_json = self.text.is_empty() || self.text.starts_with('{');
            if is_json && !self.is_in_string && c.is_ascii_whitespace() {
                continue;
            }
            self.is_in_string ^= c == '"' && !self.is_escaped;
            self.is_escaped = c == '\\' && !self.is_escaped;
            self.text.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &[&str]) -> Vec<AnswerPiece> {
        let mut pieces = vec![AnswerPiece::Call { name: name.into(), id: None }];
        pieces.extend(arguments.iter().map(|it| AnswerPiece::Arguments((*it).to_owned())));
        pieces.push(AnswerPiece::CallEnd);
        pieces
    }

    #[test]
    fn a_call_that_is_made_again_ends_the_answer() {
        let mut repeats = RepeatFilter::default();
        let first = call("f", &["{\"a\": ", "1}"]);
        assert_eq!(repeats.filter(first.clone()), first);
        let other = call("g", &["{\"a\": ", "1}"]);
        assert_eq!(repeats.filter(other.clone()), other);
        // It differs only at its end, and is passed on in one piece.
        let late = repeats.filter(call("f", &["{\"a\": ", "12}"]));
        assert_eq!(late, call("f", &["{\"a\": 12}"]));
        assert!(!repeats.is_over());
        assert_eq!(repeats.filter(call("f", &["{\"a\"", ": 1}"])), []);
        assert!(repeats.is_over());
        assert_eq!(repeats.filter(vec![AnswerPiece::Text("so".into())]), []);
    }

    #[test]
    fn blanks_count_only_where_they_mean_something() {
        for (one, other, is_same) in [
            ("{\"a\": 1}", " {\"a\":\n1 }", true),
            ("{\"a\": \"b c\"}", "{\"a\": \"bc\"}", false),
            ("{\"a\": \"\\\" \"}", "{\"a\": \"\\\"\"}", false),
            ("{\"a\": \"\\\\\" }", "{\"a\": \"\\\\\"}", true),
            ("free text", "freetext", false),
        ] {
            let mut repeats = RepeatFilter::default();
            repeats.filter(call("f", &[one]));
            let found = repeats.filter(call("f", &[other]));
            assert_eq!((found.is_empty(), repeats.is_over()), (is_same, is_same), "{other}");
        }
    }

    #[test]
    fn an_unfinished_call_is_returned() {
        let mut repeats = RepeatFilter::default();
        repeats.filter(call("f", &["{}"]));
        let cut = vec![AnswerPiece::Call { name: "f".into(), id: None }, AnswerPiece::CallCut];
        assert_eq!(repeats.filter(cut.clone()), cut);
    }
}
