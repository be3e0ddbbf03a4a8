//! An answer while it comes: tokens and their text into what is shown, and what is kept of it.
//!
//! **Invariant:** what is kept of an answer is what was shown, with the very tokens that it was
//! sampled as.

use moeflux::{Finish, TokenId, Tokenizer};
use moeflux_chat::{AnswerReader, Assistant, Call, HiddenMarkers, Piece, Sampled};

use crate::shown::{Begins, Calls};

/// A part of what is shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Thought(String),
    Text(String),
    Call(Call),
    /// A call of this tool that is not whole.
    CutCall(String),
}

/// An answer while it comes.
#[derive(Debug)]
pub(crate) struct Answer {
    reader: AnswerReader,
    markers: HiddenMarkers,
    /// Name and arguments of the call that began last.
    call: Option<(String, String)>,
    said: Assistant,
    tokens: Vec<TokenId>,
    /// Something came that no history tells in its place.
    is_strange: bool,
}

impl Answer {
    /// An answer that begins like this, and may call these tools.
    pub(crate) fn new((start, thoughts): Begins, calls: &Calls, tokenizer: &Tokenizer) -> Self {
        let mut reader = AnswerReader::new(start, thoughts);
        let mut markers = HiddenMarkers::of(tokenizer, thoughts);
        if let Some((format, tools)) = calls {
            reader = reader.with_calls(format, tools);
            markers = markers.with_calls(tokenizer, format);
        }
        Self::with_reader(reader, markers)
    }

    fn with_reader(reader: AnswerReader, markers: HiddenMarkers) -> Self {
        Self {
            reader,
            markers,
            call: None,
            said: Assistant::default(),
            tokens: Vec::new(),
            is_strange: false,
        }
    }

    /// A token was sampled, and this text became certain.
    pub(crate) fn token(&mut self, token: TokenId, text: &str) -> Vec<Part> {
        self.tokens.push(token);
        let pieces = self.reader.push(self.markers.text(token).unwrap_or(text));
        self.parts(pieces)
    }

    /// The end, with the text that was held back.
    pub(crate) fn end(&mut self, rest: &str, finish: Finish) -> Vec<Part> {
        let mut pieces = self.reader.push(rest);
        pieces.extend(match finish {
            Finish::EndToken => self.reader.finish(),
            _ => self.reader.finish_cut(),
        });
        // The tokens say more than the text.
        self.is_strange |= finish == Finish::StopString;
        self.parts(pieces)
    }

    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// What was said, with ids for its calls, and the same for later prompts, if it can stand
    /// there as it was sampled.
    pub(crate) fn into_said(
        self,
        call_id: impl Fn(usize) -> String,
    ) -> (Assistant, Option<Sampled>) {
        let Self { mut said, tokens, is_strange, .. } = self;
        for (call_idx, call) in said.calls.iter_mut().enumerate() {
            call.id = call_id(call_idx);
        }
        let sampled = (!is_strange).then(|| Sampled { answer: said.clone(), tokens });
        (said, sampled)
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<Part> {
        pieces.into_iter().filter_map(|piece| self.part(piece)).collect()
    }

    fn part(&mut self, piece: Piece) -> Option<Part> {
        match piece {
            Piece::Thought(text) => {
                self.said.thoughts.get_or_insert_default().push_str(&text);
                Some(Part::Thought(text))
            }
            Piece::Text(text) => {
                self.is_strange |= !self.said.calls.is_empty() && !text.trim().is_empty();
                self.said.text.push_str(&text);
                Some(Part::Text(text))
            }
            Piece::Call { name, .. } => {
                self.call = Some((name, String::new()));
                None
            }
            Piece::Arguments(more) => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&more);
                }
                None
            }
            Piece::CallEnd => {
                let (name, arguments) = self.call.take()?;
                let call = Call::from_text(String::new(), name, &arguments);
                self.said.calls.push(call.clone());
                Some(Part::Call(call))
            }
            Piece::CallCut => {
                self.is_strange = true;
                self.call.take().map(|(name, _)| Part::CutCall(name))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_chat::{AnswerStart, ThoughtFormat};

    use super::*;

    fn call(name: &str) -> Piece {
        Piece::Call { name: name.into(), id: None }
    }

    fn answer() -> Answer {
        let reader = AnswerReader::new(AnswerStart::Open, ThoughtFormat::usual());
        Answer::with_reader(reader, HiddenMarkers::default())
    }

    #[test]
    fn what_is_kept_is_what_was_shown() {
        let mut answer = answer();
        let parts = answer.parts(vec![
            Piece::Thought("T".into()),
            Piece::Text("a".into()),
            Piece::Text("b".into()),
            call("f"),
            Piece::Arguments("{\"a\":".into()),
            Piece::Arguments(" 1}".into()),
            Piece::CallEnd,
            Piece::Text("\n".into()),
        ]);
        assert_eq!(parts.len(), 5);
        let (said, sampled) = answer.into_said(|call_idx| format!("c{call_idx}"));
        assert_eq!((said.thoughts.as_deref(), said.text.as_str()), (Some("T"), "ab\n"));
        let expected = Call::from_text("c0".into(), "f".into(), "{\"a\": 1}");
        assert_eq!(said.calls, [expected]);
        assert_eq!(sampled.unwrap().answer, said);
    }

    #[test]
    fn what_no_history_tells_is_not_replayed() {
        let whole = || vec![call("f"), Piece::CallEnd];
        for strange in [
            [whole(), vec![Piece::Text("x".into())]].concat(),
            vec![call("f"), Piece::Arguments("{".into()), Piece::CallCut],
        ] {
            let mut answer = answer();
            answer.parts(strange);
            assert!(answer.into_said(|_| String::new()).1.is_none());
        }
        let mut stopped = answer();
        let parts = stopped.end("abc", Finish::StopString);
        assert_eq!(parts, [Part::Text("abc".into())]);
        assert!(stopped.into_said(|_| String::new()).1.is_none());
    }

    #[test]
    fn an_answer_that_is_cut_keeps_what_was_said() {
        let mut cut = answer();
        cut.parts(vec![Piece::Text("so f".into())]);
        cut.end("", Finish::Cancelled);
        let (said, sampled) = cut.into_said(|_| String::new());
        assert_eq!(said.text, "so f");
        assert_eq!(sampled.unwrap().answer, said);
    }
}
