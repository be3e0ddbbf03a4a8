//! The text form of an answer: reasoning between markers, without empty reasoning, and complete
//! tool calls.
//!
//! **Invariant:** everything that the model wrote is shown, except blank space around reasoning and
//! calls, and incomplete calls, of which only the name is given.

use moeflux_chat::AnswerPart;
use serde_json::{Value, json};

/// A part of the printed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputPart {
    Text(String),
    Call(PrintedCall),
    /// An incomplete call of this tool, which must not be executed.
    CutCall(String),
}

/// A call of a tool, as it is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrintedCall {
    name: String,
    /// JSON, as the model wrote it.
    arguments: String,
}

impl PrintedCall {
    /// Returns the call as a line of JSON. Numbers keep the digits that the model wrote.
    pub(crate) fn line(&self) -> String {
        let arguments = match self.arguments.trim() {
            "" => "{}".to_owned(),
            // In valid JSON, these occur only between values.
            whole => whole.replace(['\r', '\n'], " "),
        };
        format!("{{\"name\": {}, \"arguments\": {arguments}}}", json!(self.name))
    }

    /// Returns the call as a value for other JSON.
    pub(crate) fn json(&self) -> Value {
        let line = self.line();
        // Numbers beyond the limits of f64 are valid JSON, but cannot be a value here.
        let as_text = |_| json!({"name": self.name, "arguments": self.arguments});
        serde_json::from_str(&line).unwrap_or_else(as_text)
    }
}

/// Turns the parts of an answer into text to print.
#[derive(Debug, Default)]
pub(crate) struct AnswerFormatter {
    is_in_thought: bool,
}

impl AnswerFormatter {
    /// Returns the output for these parts.
    pub(crate) fn parts(&mut self, parts: Vec<AnswerPart>) -> Vec<OutputPart> {
        let mut shown = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Thought(text) => self.push_text(true, &text, &mut shown),
                AnswerPart::Text(text) => self.push_text(false, &text, &mut shown),
                AnswerPart::CallBegun { .. } => self.push_text(false, "", &mut shown),
                AnswerPart::CallEnded { name, arguments, .. } => {
                    shown.push(OutputPart::Call(PrintedCall { name, arguments }));
                }
                AnswerPart::CallCut { name, .. } => shown.push(OutputPart::CutCall(name)),
                _ => {}
            }
        }
        shown
    }

    fn push_text(&mut self, is_thought: bool, text: &str, parts: &mut Vec<OutputPart>) {
        let marker = match (self.is_in_thought, is_thought) {
            (false, true) => "<think>\n",
            (true, false) => "\n</think>\n\n",
            _ => "",
        };
        self.is_in_thought = is_thought;
        parts.extend([marker, text].iter().filter(|it| !it.is_empty()).map(|it| text_part(it)));
    }
}

fn text_part(text: &str) -> OutputPart {
    OutputPart::Text(text.to_owned())
}

#[cfg(test)]
mod tests {
    use moeflux::Finish;
    use moeflux_chat::{Answer, AnswerReader, AnswerStart, HiddenMarkers, ThoughtFormat};

    use super::*;

    /// Joins the texts of these parts; panics on any other part.
    fn joined(parts: Vec<OutputPart>) -> String {
        let text = |part| match part {
            OutputPart::Text(text) => text,
            other => panic!("no text: {other:?}"),
        };
        parts.into_iter().map(text).collect()
    }

    #[track_caller]
    fn check(start: AnswerStart, texts: &[&str], expected: &str) {
        let reader = AnswerReader::new(start, ThoughtFormat::usual());
        let mut answer = Answer::new(reader, HiddenMarkers::default(), "c");
        let mut shown = AnswerFormatter::default();
        let mut found: String =
            texts.iter().map(|it| joined(shown.parts(answer.text(it)))).collect();
        found += &joined(shown.parts(answer.end("", Finish::EndToken)));
        assert_eq!(found, expected, "{texts:?}");
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
    }

    #[test]
    fn calls_are_shown_when_they_are_whole() {
        let begun = |call_idx, name: &str| {
            let (id, name) = (format!("c_{call_idx}"), name.to_owned());
            AnswerPart::CallBegun { call_idx, id, name }
        };
        let ended = |call_idx, name: &str, arguments: &str| {
            let (name, arguments) = (name.to_owned(), arguments.to_owned());
            AnswerPart::CallEnded { call_idx, name, arguments }
        };
        let mut shown = AnswerFormatter::default();
        let thought = vec![AnswerPart::Thought("T".into()), begun(0, "f")];
        assert_eq!(joined(shown.parts(thought)), "<think>\nT\n</think>\n\n");
        let rest = vec![
            ended(0, "f", "{\"a\": 1.50,\n \"b\": \"\\n\"}"),
            AnswerPart::Text("x".into()),
            begun(1, "g\n"),
            ended(1, "g\n", ""),
            begun(2, "h"),
            AnswerPart::CallCut { call_idx: 2, name: "h".into() },
        ];
        let [
            OutputPart::Call(f),
            OutputPart::Text(text),
            OutputPart::Call(g),
            OutputPart::CutCall(h),
        ] = &shown.parts(rest)[..]
        else {
            panic!("a call, a text, a call, half a call")
        };
        let expected = r#"{"name": "f", "arguments": {"a": 1.50,  "b": "\n"}}"#;
        assert_eq!((f.line().as_str(), text.as_str(), h.as_str()), (expected, "x", "h"));
        assert_eq!(f.json(), json!({"name": "f", "arguments": {"a": 1.5, "b": "\n"}}));
        assert_eq!(g.line(), r#"{"name": "g\n", "arguments": {}}"#);
        let huge = PrintedCall { name: "f".into(), arguments: "{\"a\": 1e999}".into() };
        assert_eq!(huge.json()["arguments"], "{\"a\": 1e999}");
    }
}
