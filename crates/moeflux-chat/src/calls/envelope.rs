//! Reads calls from complete JSON, in the shapes that models confuse with the usual one.
//!
//! **Invariant:** every member of the JSON is accounted for; otherwise it contains no calls.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value as Json};

use crate::calls::arguments::json::{self, JsonProgress, JsonReader};
use crate::conversation::Tool;

/// Keys without meaning for a call.
const EMPTY_KEYS: [&str; 3] = ["id", "type", "index"];

/// Members in order, with their values as written, because parsing the values would round long
/// numbers.
type Members = Vec<(String, Box<RawValue>)>;

/// Returns the index of each called tool and its arguments as a JSON object.
pub(crate) fn calls(value: &str, tools: &[Tool]) -> Option<Vec<(usize, String)>> {
    let value = value.trim();
    if !value.starts_with('[') {
        return Some(vec![one_call(value, tools)?]);
    }
    let calls: Vec<Box<RawValue>> = serde_json::from_str(value).ok()?;
    let calls: Option<Vec<_>> = calls.iter().map(|it| one_call(it.get(), tools)).collect();
    calls.filter(|it| !it.is_empty())
}

fn one_call(call: &str, tools: &[Tool]) -> Option<(usize, String)> {
    let mut call = members(call)?;
    let has_name = call.iter().any(|(key, _)| key == "name");
    let name = match take(&mut call, "function") {
        // The shape used in API requests.
        Some(inner) if inner.get().starts_with('{') => {
            drop_empty(&mut call);
            return if call.is_empty() { one_call(inner.get(), tools) } else { None };
        }
        Some(name) => (!has_name).then_some(name)?,
        None => take(&mut call, "name")?,
    };
    let name: String = serde_json::from_str(name.get()).ok()?;
    let tool_idx = tools.iter().position(|tool| tool.name == name)?;
    let keys = ["arguments", "parameters"];
    let Some(given) = keys.iter().find_map(|key| take(&mut call, key)) else {
        return Some((tool_idx, among(call, &tools[tool_idx])?));
    };
    drop_empty(&mut call);
    if !call.is_empty() {
        return None;
    }
    let arguments = match given.get() {
        object if object.starts_with('{') => object.to_owned(),
        "null" => "{}".to_owned(),
        text => from_text(&serde_json::from_str::<String>(text).ok()?)?,
    };
    Some((tool_idx, arguments))
}

fn members(object: &str) -> Option<Members> {
    // The first parse keeps the order, and only the second one keeps the source text of the values.
    let keys: Map<String, Json> = serde_json::from_str(object).ok()?;
    let mut values: BTreeMap<String, Box<RawValue>> = serde_json::from_str(object).ok()?;
    keys.into_iter().map(|(key, _)| values.remove_entry(&key)).collect()
}

fn take(members: &mut Members, key: &str) -> Option<Box<RawValue>> {
    let at = members.iter().position(|(it, _)| it == key)?;
    Some(members.remove(at).1)
}

fn drop_empty(members: &mut Members) {
    members.retain(|(key, _)| !EMPTY_KEYS.contains(&key.as_str()));
}

/// Collects arguments that stand next to the name; all of them must be declared parameters.
fn among(mut members: Members, tool: &Tool) -> Option<String> {
    let declared = tool.parameters.get("properties").and_then(Json::as_object);
    let is_declared = |key: &str| declared.is_some_and(|it| it.contains_key(key));
    members.retain(|(key, _)| is_declared(key) || !EMPTY_KEYS.contains(&key.as_str()));
    let mut object = "{".to_owned();
    for (idx, (key, value)) in members.iter().enumerate() {
        if !is_declared(key) {
            return None;
        }
        object.push_str(if idx == 0 { "" } else { ", " });
        json::push_text(key, &mut object);
        object.extend([": ", value.get()]);
    }
    Some(object + "}")
}

fn from_text(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("{}".to_owned());
    }
    let (mut reader, mut value) = (JsonReader::new(), String::new());
    let is_read = text.chars().all(|next| reader.push(next, &mut value) != JsonProgress::Broken);
    let value = value.trim();
    (is_read && reader.is_done() && value.starts_with('{')).then(|| value.to_owned())
}
