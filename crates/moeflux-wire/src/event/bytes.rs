//! Writes the events of a stream and whole responses as bytes.
//!
//! **Invariant:** an event is complete, and no text of a client or model can end it early.

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::event::PromptProgress;

/// The last event of `OpenAI`'s older dialects.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// Line ends that JSON does not escape, at which some clients split a stream.
const OTHER_LINE_ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Writes an event without a name.
pub(crate) fn data(json: &Json, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    body(json, out);
    out.extend_from_slice(b"\n\n");
}

/// Writes an event named by its `type`.
pub(crate) fn named(json: &Json, out: &mut Vec<u8>) {
    let name = json["type"].as_str().unwrap_or_default();
    out.extend_from_slice(format!("event: {name}\n").as_bytes());
    data(json, out);
}

/// Writes a comment with the progress, which clients skip.
pub(crate) fn comment(progress: PromptProgress, out: &mut Vec<u8>) {
    let PromptProgress { n_done, n_total, seconds_left, .. } = progress;
    let left = seconds_left.map_or_else(String::new, |it| format!(", {it} s left"));
    out.extend_from_slice(format!(": {n_done} of {n_total} tokens read{left}\n\n").as_bytes());
}

/// Returns the progress as JSON for an event.
pub(crate) fn progress(progress: PromptProgress) -> Json {
    let PromptProgress { n_done, n_total, seconds_left, .. } = progress;
    json!({"tokens_read": n_done, "tokens": n_total, "seconds_left": seconds_left})
}

/// Writes a blank line before the body, which JSON parsers skip.
pub(crate) fn blank(out: &mut Vec<u8>) {
    out.push(b'\n');
}

/// Writes a body.
pub(crate) fn body(json: &impl Serialize, out: &mut Vec<u8>) {
    let text = serde_json::to_string(json).expect("keys are strings");
    if !text.contains(OTHER_LINE_ENDS) {
        return out.extend_from_slice(text.as_bytes());
    }
    for character in text.chars() {
        if OTHER_LINE_ENDS.contains(&character) {
            out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes());
        } else {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_in_every_way_of_counting() {
        let text = "a\u{2028}\u{85}\r\n\u{b}\u{e9}";
        let mut out = Vec::new();
        named(&json!({"type": "t", "text": text}), &mut out);
        let found = String::from_utf8(out).unwrap();
        let expected =
            "event: t\ndata: {\"type\":\"t\",\"text\":\"a\\u2028\\u0085\\r\\n\\u000b\u{e9}\"}\n\n";
        assert_eq!(found, expected);
        let json: Json =
            serde_json::from_str(found.lines().nth(1).unwrap().trim_start_matches("data: "))
                .unwrap();
        assert_eq!(json["text"], text);
    }

    #[test]
    fn signs_of_life() {
        let mut out = Vec::new();
        let progress = PromptProgress { n_done: 1, n_total: 2, ..PromptProgress::default() };
        comment(progress, &mut out);
        comment(PromptProgress { seconds_left: Some(9), ..progress }, &mut out);
        blank(&mut out);
        let expected = ": 1 of 2 tokens read\n\n: 1 of 2 tokens read, 9 s left\n\n\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
