//! An answer as it is shown: thoughts between their markers, an empty thought not at all, and calls
//! of tools whole.
//!
//! **Invariant:** what the model wrote is shown, but for blank space around thoughts and calls, and
//! for calls that are not whole, which are only named.

use moeflux::{Finish, TokenId, Tokenizer};
use moeflux_chat::{
    AnswerReader, AnswerStart, CallFormat, HiddenMarkers, Piece, ThoughtFormat, Tool,
};
use serde_json::{Value, json};

/// How calls are written, and of which tools.
pub(crate) type Calls = Option<(&'static CallFormat, Vec<Tool>)>;

/// What an answer begins with, and how it tells thoughts from text.
pub(crate) type Begins = (AnswerStart, &'static ThoughtFormat);

/// A part of what is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Call(ShownCall),
    /// A call of this tool that is not whole: nobody must carry it out.
    CutCall(String),
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShownCall {
    name: String,
    /// JSON, as the model wrote it.
    arguments: String,
}

impl ShownCall {
    /// As a line of JSON. Numbers keep the digits that the model wrote.
    pub(crate) fn line(&self) -> String {
        let arguments = match self.arguments.trim() {
            "" => "{}".to_owned(),
            // In valid JSON these stand between values only.
            whole => whole.replace(['\r', '\n'], " "),
        };
        format!("{{\"name\": {}, \"arguments\": {arguments}}}", json!(self.name))
    }

    /// As a value in other JSON.
    pub(crate) fn json(&self) -> Value {
        let line = self.line();
        // Numbers beyond all limits are JSON, and no value here.
        let as_text = |_| json!({"name": self.name, "arguments": self.arguments});
        serde_json::from_str(&line).unwrap_or_else(as_text)
    }
}

/// An answer on its way to the reader.
#[derive(Debug)]
pub(crate) struct Shown {
    /// `None` for text that is to stay as it is.
    reader: Option<AnswerReader>,
    markers: HiddenMarkers,
    is_in_thought: bool,
    /// The call that began last.
    call: ShownCall,
}

impl Shown {
    /// For an answer of a chat.
    pub(crate) fn chat((start, thoughts): Begins, calls: &Calls, tokenizer: &Tokenizer) -> Self {
        let mut reader = AnswerReader::new(start, thoughts);
        let mut markers = HiddenMarkers::of(tokenizer, thoughts);
        if let Some((format, tools)) = calls {
            reader = reader.with_calls(format, tools);
            markers = markers.with_calls(tokenizer, format);
        }
        Self::new(Some(reader), markers)
    }

    /// For text that is to stay as it is.
    pub(crate) fn unchanged() -> Self {
        Self::new(None, HiddenMarkers::default())
    }

    fn new(reader: Option<AnswerReader>, markers: HiddenMarkers) -> Self {
        Self { reader, markers, is_in_thought: false, call: ShownCall::default() }
    }

    /// What is shown now that this token came, of which the text follows.
    pub(crate) fn token(&mut self, token: TokenId) -> Vec<Part> {
        match self.markers.text(token) {
            Some(marker) => self.text(marker),
            None => Vec::new(),
        }
    }

    /// What is shown now that this text came.
    pub(crate) fn text(&mut self, text: &str) -> Vec<Part> {
        match &mut self.reader {
            None => vec![Part::Text(text.to_owned())],
            Some(reader) => {
                let pieces = reader.push(text);
                self.shown(pieces)
            }
        }
    }

    /// What is shown at the end.
    pub(crate) fn finish(&mut self, finish: Finish) -> Vec<Part> {
        let Some(reader) = &mut self.reader else { return Vec::new() };
        let last = match finish {
            Finish::EndToken => reader.finish(),
            _ => reader.finish_cut(),
        };
        self.shown(last)
    }

    fn shown(&mut self, pieces: Vec<Piece>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Thought(text) => self.say(true, &text, &mut parts),
                Piece::Text(text) => self.say(false, &text, &mut parts),
                Piece::Call { name, .. } => {
                    self.say(false, "", &mut parts);
                    self.call = ShownCall { name, arguments: String::new() };
                }
                Piece::Arguments(text) => self.call.arguments.push_str(&text),
                Piece::CallEnd => parts.push(Part::Call(std::mem::take(&mut self.call))),
                Piece::CallCut => {
                    parts.push(Part::CutCall(std::mem::take(&mut self.call).name));
                }
                _ => {}
            }
        }
        parts
    }

    fn say(&mut self, is_thought: bool, text: &str, parts: &mut Vec<Part>) {
        let marker = match (self.is_in_thought, is_thought) {
            (false, true) => "<think>\n",
            (true, false) => "\n</think>\n\n",
            _ => "",
        };
        self.is_in_thought = is_thought;
        parts.extend([marker, text].iter().filter(|it| !it.is_empty()).map(|it| text_part(it)));
    }
}

fn text_part(text: &str) -> Part {
    Part::Text(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of these parts; there is nothing else.
    fn joined(parts: Vec<Part>) -> String {
        let text = |part| match part {
            Part::Text(text) => text,
            other => panic!("no text: {other:?}"),
        };
        parts.into_iter().map(text).collect()
    }

    #[track_caller]
    fn check(start: AnswerStart, pieces: &[&str], expected: &str) {
        let mut shown = Shown::new(
            Some(AnswerReader::new(start, ThoughtFormat::usual())),
            HiddenMarkers::default(),
        );
        let mut found: String = pieces.iter().map(|it| joined(shown.text(it))).collect();
        found += &joined(shown.finish(Finish::EndToken));
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
        assert_eq!(joined(unchanged.text("<think></think> a")), "<think></think> a");
        assert_eq!(unchanged.finish(Finish::Length), []);
    }

    fn call(name: &str) -> Piece {
        Piece::Call { name: name.into(), id: None }
    }

    #[test]
    fn calls_are_shown_when_they_are_whole() {
        let mut shown = Shown::new(
            Some(AnswerReader::new(AnswerStart::Open, ThoughtFormat::usual())),
            HiddenMarkers::default(),
        );
        let begun = vec![
            Piece::Thought("T".into()),
            call("f"),
            Piece::Arguments("{\"a\": 1.50,\n ".into()),
        ];
        assert_eq!(joined(shown.shown(begun)), "<think>\nT\n</think>\n\n");
        let rest = vec![
            Piece::Arguments("\"b\": \"\\n\"}".into()),
            Piece::CallEnd,
            Piece::Text("x".into()),
            call("g\n"),
            Piece::CallEnd,
            call("h"),
            Piece::Arguments("{".into()),
            Piece::CallCut,
        ];
        let [Part::Call(f), Part::Text(text), Part::Call(g), Part::CutCall(h)] =
            &shown.shown(rest)[..]
        else {
            panic!("a call, a text, a call, half a call")
        };
        let expected = r#"{"name": "f", "arguments": {"a": 1.50,  "b": "\n"}}"#;
        assert_eq!((f.line().as_str(), text.as_str(), h.as_str()), (expected, "x", "h"));
        assert_eq!(f.json(), json!({"name": "f", "arguments": {"a": 1.5, "b": "\n"}}));
        assert_eq!(g.line(), r#"{"name": "g\n", "arguments": {}}"#);
        let huge = ShownCall { name: "f".into(), arguments: "{\"a\": 1e999}".into() };
        assert_eq!(huge.json()["arguments"], "{\"a\": 1e999}");
    }
}
