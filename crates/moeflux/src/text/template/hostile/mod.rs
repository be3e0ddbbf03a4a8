//! Templates that try to hang, flood or overflow: each ends in a one-line error or in the correct
//! text.
//!
//! `cases.json` has a name, a template and the expected result: a part of the error, or the length
//! of the text in bytes. `@[N|text]@` stands for N copies of the text. `tools/check/templates.sh`
//! runs the same cases in separate processes with limits on time and memory; here the work limit is
//! lower, so that all cases take seconds.

use serde_json::json;

use super::*;

const CASES: &str = include_str!("cases.json");
const WORK_MAX: u64 = 20_000_000;
/// Maximum length of an error: a path, a line, and a reason of 300 characters.
const ERROR_BYTES_MAX: usize = 1500;

fn expanded(template: &str) -> String {
    let mut result = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("@[") {
        let (count, after) = after.split_once('|').unwrap();
        let (unit, after) = after.split_once("]@").unwrap();
        result.push_str(before);
        result.push_str(&unit.repeat(count.parse().unwrap()));
        rest = after;
    }
    result + rest
}

fn render(source: &str) -> Result<String> {
    let path = Path::new("t.jinja");
    let template = ChatTemplate::from_source(path, source, SpecialTokens::default())?;
    let messages = [Message::new("user", "x".repeat(1 << 20)), Message::new("assistant", "y")];
    let extra = json!({"text": "ab ".repeat(1 << 10), "list": [1, [2, {"a": [3]}], "b"]});
    let extra = extra.as_object().cloned().unwrap();
    let options = TemplateOptions { now_seconds: Some(0), extra, ..TemplateOptions::default() };
    template.render_within(WORK_MAX, &messages, &options)
}

/// Returns how the result of a case differs from the expected one, if it does.
fn wrong(case: &Json) -> Option<String> {
    let name = case[0].as_str().unwrap();
    let got = render(&expanded(case[1].as_str().unwrap()));
    let is_right = match (&got, case[2].as_str(), case[2].as_u64()) {
        (Ok(text), _, Some(n_bytes)) => u64::try_from(text.len()).unwrap() == n_bytes,
        (Err(error), Some(end), _) => {
            let error = error.to_string();
            // The lower work limit may be reached before the expected error.
            let is_limit = error.contains("more than ");
            error.starts_with("t.jinja: chat template")
                && error.lines().count() == 1
                && error.len() <= ERROR_BYTES_MAX
                && (error.contains(end) || is_limit)
        }
        (Err(error), _, Some(_)) => error.to_string().contains("units of work"),
        _ => false,
    };
    let got = got.map(|text| text.len()).map_err(|error| error.to_string());
    (!is_right).then(|| format!("{name}: {got:?} instead of {}", case[2]))
}

#[test]
fn each_ends_in_one_line_or_the_right_text() {
    let cases: Vec<Json> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() > 300);
    let wrong: Vec<String> = cases.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
