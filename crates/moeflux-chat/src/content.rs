//! The content of an answer as bytes, for answers that are saved on a drive.

use serde_json::{Value as Json, json};

use crate::answer_reader::AnswerStart;
use crate::conversation::{Assistant, Call};

/// Returns an answer, and the state in which it began, as JSON.
pub(crate) fn to_bytes(answer: &Assistant, start: AnswerStart) -> Vec<u8> {
    let call = |call: &Call| json!({"id": call.id, "name": call.name, "arguments": call.arguments});
    let content = json!({
        "start": name_of(start),
        "thoughts": answer.thoughts,
        "text": answer.text,
        "calls": answer.calls.iter().map(call).collect::<Vec<Json>>(),
    });
    content.to_string().into_bytes()
}

/// Reads what [`to_bytes`] has written; `None` for anything else.
pub(crate) fn of_bytes(bytes: &[u8]) -> Option<(Assistant, AnswerStart)> {
    let content: Json = serde_json::from_slice(bytes).ok()?;
    let starts = [AnswerStart::Open, AnswerStart::Thought, AnswerStart::Text];
    let start = content.get("start")?.as_str()?;
    let start = starts.into_iter().find(|it| name_of(*it) == start)?;
    let thoughts = match content.get("thoughts")? {
        Json::Null => None,
        thoughts => Some(thoughts.as_str()?.to_owned()),
    };
    let text = content.get("text")?.as_str()?.to_owned();
    let calls = content.get("calls")?.as_array()?.iter().map(call_of).collect::<Option<_>>()?;
    Some((Assistant { thoughts, text, calls }, start))
}

fn name_of(start: AnswerStart) -> &'static str {
    match start {
        AnswerStart::Open => "open",
        AnswerStart::Thought => "thought",
        AnswerStart::Text => "text",
    }
}

fn call_of(call: &Json) -> Option<Call> {
    let text = |name: &str| Some(call.get(name)?.as_str()?.to_owned());
    let arguments = call.get("arguments")?.as_object()?.clone();
    Some(Call { id: text("id")?, name: text("name")?, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_as_bytes() {
        let arguments = json!({"b": [1.5, null, {"x": "\u{e9}\n"}], "a": -3});
        let call = Call::from_text("call_1".to_owned(), "f".to_owned(), &arguments.to_string());
        for (thoughts, start) in [
            (None, AnswerStart::Text),
            (Some(String::new()), AnswerStart::Open),
            (Some("So.".to_owned()), AnswerStart::Thought),
        ] {
            let text = "\u{1f980} \"quoted\"".to_owned();
            let answer = Assistant { thoughts, text, calls: vec![call.clone()] };
            let bytes = to_bytes(&answer, start);
            assert_eq!(of_bytes(&bytes), Some((answer, start)));
            for n_bytes in 0..bytes.len() {
                assert_eq!(of_bytes(&bytes[..n_bytes]), None);
            }
        }
        assert_eq!(of_bytes(br#"{"start":"text","thoughts":3,"text":"","calls":[]}"#), None);
    }
}
