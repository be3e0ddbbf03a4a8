//! Ends an answer that repeats a call.
//!
//! A model that is made to call tools may repeat the same call until its tokens are used up.
//! **Invariant:** of two calls with the same name and arguments only the first is passed on, and
//! nothing after it. Everything else is passed on unchanged, and held back only while it may still
//! be a repetition. Whitespace between the tokens of a JSON object is ignored.

use crate::piece::Piece;

/// The calls of an answer so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeats {
    whole: Vec<Call>,
    begun: Option<Call>,
    /// Whether the current call is held back.
    is_held: bool,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Call {
    name: String,
    id: Option<String>,
    arguments: String,
    /// The arguments without insignificant whitespace.
    meant: Meant,
}

/// Arguments in the form in which they are compared.
#[derive(Clone, Debug, Default)]
struct Meant {
    text: String,
    is_in_string: bool,
    is_escaped: bool,
}

impl Repeats {
    /// Returns whether a call was repeated.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns these pieces without repetitions.
    pub(crate) fn without(&mut self, pieces: Vec<Piece>) -> Vec<Piece> {
        let mut left = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if self.is_over {
                break;
            }
            self.take(piece, &mut left);
        }
        left
    }

    fn take(&mut self, piece: Piece, left: &mut Vec<Piece>) {
        match piece {
            Piece::Call { name, id } => {
                let call = Call { name, id, arguments: String::new(), meant: Meant::default() };
                self.is_held = self.may_repeat(&call);
                self.begun = Some(call.clone());
                if !self.is_held {
                    left.push(Piece::Call { name: call.name, id: call.id });
                }
            }
            Piece::Arguments(text) => {
                let Some(mut call) = self.begun.take() else { return };
                call.arguments.push_str(&text);
                call.meant.push(&text);
                if !self.is_held {
                    left.push(Piece::Arguments(text));
                } else if !self.may_repeat(&call) {
                    self.is_held = false;
                    left.extend(call.pieces());
                }
                self.begun = Some(call);
            }
            Piece::CallEnd => {
                let Some(call) = self.begun.take() else { return };
                if self.is_held && self.whole.iter().any(|it| it.is_same(&call)) {
                    self.is_over = true;
                    return;
                }
                self.let_go(&call, left);
                left.push(Piece::CallEnd);
                self.whole.push(call);
            }
            Piece::CallCut => {
                if let Some(call) = self.begun.take() {
                    self.let_go(&call, left);
                }
                left.push(Piece::CallCut);
            }
            other => left.push(other),
        }
    }

    fn let_go(&mut self, call: &Call, left: &mut Vec<Piece>) {
        if std::mem::take(&mut self.is_held) {
            left.extend(call.pieces());
        }
    }

    fn may_repeat(&self, call: &Call) -> bool {
        let begins = |it: &Call| it.meant.text.starts_with(&call.meant.text);
        self.whole.iter().any(|it| it.name == call.name && begins(it))
    }
}

impl Call {
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.meant.text == other.meant.text
    }

    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let call = Piece::Call { name: self.name.clone(), id: self.id.clone() };
        let arguments = Some(self.arguments.clone()).filter(|it| !it.is_empty());
        std::iter::once(call).chain(arguments.map(Piece::Arguments))
    }
}

impl Meant {
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

    fn call(name: &str, arguments: &[&str]) -> Vec<Piece> {
        let mut pieces = vec![Piece::Call { name: name.into(), id: None }];
        pieces.extend(arguments.iter().map(|it| Piece::Arguments((*it).to_owned())));
        pieces.push(Piece::CallEnd);
        pieces
    }

    #[test]
    fn a_call_that_is_made_again_ends_the_answer() {
        let mut repeats = Repeats::default();
        let first = call("f", &["{\"a\": ", "1}"]);
        assert_eq!(repeats.without(first.clone()), first);
        let other = call("g", &["{\"a\": ", "1}"]);
        assert_eq!(repeats.without(other.clone()), other);
        // It differs only at its end, and is passed on in one piece.
        let late = repeats.without(call("f", &["{\"a\": ", "12}"]));
        assert_eq!(late, call("f", &["{\"a\": 12}"]));
        assert!(!repeats.is_over());
        assert_eq!(repeats.without(call("f", &["{\"a\"", ": 1}"])), []);
        assert!(repeats.is_over());
        assert_eq!(repeats.without(vec![Piece::Text("so".into())]), []);
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
            let mut repeats = Repeats::default();
            repeats.without(call("f", &[one]));
            let found = repeats.without(call("f", &[other]));
            assert_eq!((found.is_empty(), repeats.is_over()), (is_same, is_same), "{other}");
        }
    }

    #[test]
    fn half_a_call_comes_out() {
        let mut repeats = Repeats::default();
        repeats.without(call("f", &["{}"]));
        let cut = vec![Piece::Call { name: "f".into(), id: None }, Piece::CallCut];
        assert_eq!(repeats.without(cut.clone()), cut);
    }
}
