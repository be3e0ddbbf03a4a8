//! Content as clients send it: a string, or a list of parts, of which text is accepted.
//!
//! **Invariant:** a part other than text is refused by its path, never left out.

use serde_json::Value as Json;

use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, unsupported, wrong};

/// Types of parts that contain text, and the key of that text.
const TEXT_PARTS: [(&str, &str); 6] = [
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("reasoning_text", "text"),
    ("summary_text", "text"),
    ("refusal", "refusal"),
];

/// Keys of parts that have no effect.
const KNOWN: [&str; 4] = ["cache_control", "citations", "annotations", "logprobs"];

/// A line that one client puts before its instructions, with a number that changes each time. It
/// would keep prompts from sharing a prefix.
const BILLING: &str = "x-anthropic-billing-header:";

/// Returns the text of some content; parts are joined by line ends.
pub(crate) fn text(path: &str, content: Json, ignored: &mut Ignored) -> Result<String, Failure> {
    Ok(parts(path, content, ignored)?.join("\n"))
}

/// Returns the text of instructions, without lines that are not meant for the model.
pub(crate) fn instructions(
    path: &str,
    content: Json,
    ignored: &mut Ignored,
) -> Result<String, Failure> {
    let mut parts = parts(path, content, ignored)?;
    if let Some(first) = parts.first_mut().filter(|it| it.starts_with(BILLING)) {
        *first = first.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
        if first.is_empty() {
            parts.remove(0);
        }
    }
    Ok(parts.join("\n"))
}

fn parts(path: &str, content: Json, ignored: &mut Ignored) -> Result<Vec<String>, Failure> {
    match content {
        Json::String(text) => Ok(vec![text]),
        Json::Array(parts) => {
            let parts = parts.into_iter().enumerate();
            parts.map(|(index, it)| part(element(path, index), it, ignored)).collect()
        }
        other => Err(wrong(path, "a string or a list of parts", &other)),
    }
}

/// Returns the text of one part.
pub(crate) fn part(path: String, part: Json, ignored: &mut Ignored) -> Result<String, Failure> {
    if let Json::String(text) = part {
        return Ok(text);
    }
    let mut part = Fields::of(path, part)?;
    let kind = part.required_string("type")?;
    let Some((_, key)) = TEXT_PARTS.iter().find(|(name, _)| *name == kind) else {
        return Err(unsupported(&part.path("type"), &kind, "this server takes text"));
    };
    let text = part.required_string(key)?;
    part.drop_known(&KNOWN);
    part.end(ignored);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(content: Json, expected: Result<&str, &str>) {
        let found = instructions("system", content, &mut Ignored::default());
        let found = found.as_ref().map(String::as_str).map_err(|it| it.message.as_str());
        assert_eq!(found, expected);
    }

    #[test]
    fn parts_of_text_are_joined() {
        check(json!("a"), Ok("a"));
        check(json!([]), Ok(""));
        check(json!(["a", {"type": "text", "text": "b", "cache_control": {}}]), Ok("a\nb"));
        check(json!([{"type": "refusal", "refusal": "no"}]), Ok("no"));
    }

    #[test]
    fn other_content_is_refused_by_its_path() {
        check(json!(5), Err("`system`: expected a string or a list of parts, got 5"));
        check(json!([5]), Err("`system[0]`: expected an object, got 5"));
        check(json!([{"type": "text"}]), Err("`system[0].text`: is missing"));
        check(json!([{"text": "a"}]), Err("`system[0].type`: is missing"));
        check(
            json!(["a", {"type": "image_url", "image_url": {}}]),
            Err("`system[1].type`: `image_url` is not supported: this server takes text"),
        );
    }

    #[test]
    fn the_line_that_changes_each_time_is_dropped() {
        let line = "x-anthropic-billing-header: cc_version=2; cch=1f;";
        check(json!([{"type": "text", "text": line}, "Be brief."]), Ok("Be brief."));
        check(json!(format!("{line}\nBe brief.")), Ok("Be brief."));
        check(json!(["Be brief.", line]), Ok(&format!("Be brief.\n{line}")));
        check(json!([line]), Ok(""));
    }
}
