//! Answers with tool calls: any answer can be parsed, and its division into pieces does not matter.
//!
//! The first byte of an input chooses the format (`0`: the first). The second chooses whether a
//! limit ended the answer, and how thoughts are distinguished from text. The rest is the answer.

use moeflux_chat::{AnswerPiece, AnswerReader, AnswerStart, CallFormat, ThoughtFormat, Tool};
use serde_json::{Map, Value as Json, json};

/// Markers that never occur in the text of a harmony answer.
const MARKERS: [&str; 4] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"];

/// Upper bound on the places at which an input is cut in two.
const CUTS_MAX: usize = 8;

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let tools = tools();
    move |input| check(input, &tools)
}

fn check(input: &[u8], tools: &[Tool]) {
    let [format, ending, answer @ ..] = input else { return };
    let n_formats = CallFormat::all().count();
    let format = usize::from(format.wrapping_sub(b'0')) % n_formats;
    let format = CallFormat::all().nth(format).expect("one of these");
    let is_cut = ending % 2 == 1;
    let n_thoughts = ThoughtFormat::all().count();
    let thoughts = ThoughtFormat::all().nth(usize::from(*ending / 2) % n_thoughts);
    let thoughts = thoughts.expect("one of these");
    let answer = String::from_utf8_lossy(answer);
    let read = |parts: &[&str]| {
        let mut reader = AnswerReader::new(AnswerStart::Open, thoughts).with_calls(format, tools);
        let mut pieces: Vec<AnswerPiece> =
            parts.iter().flat_map(|part| reader.push(part)).collect();
        pieces.extend(if is_cut { reader.finish_cut() } else { reader.finish() });
        joined(pieces)
    };
    let whole = read(&[&answer]);
    check_pieces(&whole, (&answer, thoughts), tools);
    let places: Vec<usize> = answer.char_indices().map(|(at, _)| at).collect();
    let characters: Vec<&str> = answer.split("").collect();
    assert_eq!(read(&characters), whole, "by characters");
    for place in places.iter().step_by(places.len() / CUTS_MAX + 1) {
        let (first, second) = answer.split_at(*place);
        assert_eq!(read(&[first, second]), whole, "cut at {place}");
    }
}

/// Joins consecutive pieces of one kind.
fn joined(pieces: Vec<AnswerPiece>) -> Vec<AnswerPiece> {
    let mut all: Vec<AnswerPiece> = Vec::new();
    for piece in pieces {
        match (all.last_mut(), piece) {
            (Some(AnswerPiece::Text(last)), AnswerPiece::Text(text))
            | (Some(AnswerPiece::Thought(last)), AnswerPiece::Thought(text))
            | (Some(AnswerPiece::Arguments(last)), AnswerPiece::Arguments(text)) => {
                last.push_str(&text);
            }
            (_, piece) => all.push(piece),
        }
    }
    all
}

fn check_pieces(
    pieces: &[AnswerPiece],
    (answer, thoughts): (&str, &ThoughtFormat),
    tools: &[Tool],
) {
    let mut rest = answer;
    let mut arguments = None;
    for piece in pieces {
        match piece {
            AnswerPiece::Thought(text) | AnswerPiece::Text(text) => {
                assert!(arguments.is_none(), "text in a call");
                if thoughts.title == "harmony" {
                    // Messages of one kind are joined, and their markers dropped.
                    assert!(!MARKERS.iter().any(|it| text.contains(it)), "a marker in {text}");
                    continue;
                }
                // Text occurs literally in the answer, in this order.
                let at = rest.find(text).expect("a part of the answer");
                rest = &rest[at + text.len()..];
            }
            AnswerPiece::Call { name, .. } => {
                assert!(tools.iter().any(|tool| tool.name == *name), "{name} is not offered");
                let before = arguments.replace(String::new());
                assert!(before.is_none(), "a call in a call");
            }
            AnswerPiece::Arguments(text) => {
                arguments.as_mut().expect("arguments belong to a call").push_str(text);
            }
            AnswerPiece::CallEnd => {
                let arguments = arguments.take().expect("a call began");
                let object: Result<Map<String, Json>, _> = serde_json::from_str(&arguments);
                assert!(object.is_ok(), "no object: {arguments}");
            }
            AnswerPiece::CallCut => {
                arguments.take().expect("a call began");
            }
            other => assert!(matches!(other, AnswerPiece::CallEnd), "an unknown piece: {other:?}"),
        }
    }
    assert!(arguments.is_none(), "a call without an end");
}

fn tools() -> Vec<Tool> {
    let schema = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "number": {"type": "number"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "table": {"type": "object"},
        "maybe": {"type": ["string", "null"]}, "any": {}}});
    let tool = |name: &str| Tool::function(name.to_owned(), None, Some(schema.clone()));
    vec![tool("f"), tool("f_2"), tool("get.time")]
}
