//! Calls in JSON that is whole, in the shapes that models confuse with the usual one.
//!
//! **Invariant:** all that stands in the JSON is used, or it holds no calls.

use serde_json::{Map, Value as Json};

use crate::calls::json::{JsonReader, Progress};
use crate::conversation::Tool;

/// Keys that say nothing about a call.
const EMPTY_KEYS: [&str; 3] = ["id", "type", "index"];

/// The places of the called tools and the arguments, as objects of JSON.
pub(crate) fn calls(value: &str, tools: &[Tool]) -> Option<Vec<(usize, String)>> {
    let value: Json = serde_json::from_str(value).ok()?;
    let calls = match value {
        Json::Array(calls) if !calls.is_empty() => calls,
        other => vec![other],
    };
    calls.into_iter().map(|call| one_call(call, tools)).collect()
}

fn one_call(call: Json, tools: &[Tool]) -> Option<(usize, String)> {
    let Json::Object(mut call) = call else { return None };
    call.retain(|key, _| !EMPTY_KEYS.contains(&key.as_str()));
    match call.shift_remove("function") {
        // As requests have it.
        Some(inner @ Json::Object(_)) if call.is_empty() => return one_call(inner, tools),
        Some(name @ Json::String(_)) if !call.contains_key("name") => {
            call.insert("name".to_owned(), name);
        }
        None => {}
        Some(_) => return None,
    }
    let Some(Json::String(name)) = call.shift_remove("name") else { return None };
    let tool_idx = tools.iter().position(|tool| tool.name == name)?;
    let keys = ["arguments", "parameters"];
    let given = keys.iter().find_map(|key| call.shift_remove(*key));
    let arguments = match given {
        None if call.is_empty() => Map::new(),
        None => among(call, &tools[tool_idx])?,
        Some(_) if !call.is_empty() => return None,
        Some(Json::Object(arguments)) => arguments,
        Some(Json::Null) => Map::new(),
        Some(Json::String(text)) => from_text(&text)?,
        Some(_) => return None,
    };
    Some((tool_idx, Json::Object(arguments).to_string()))
}

/// Arguments that stand next to the name: those of declared parameters.
fn among(members: Map<String, Json>, tool: &Tool) -> Option<Map<String, Json>> {
    let declared = tool.parameters.get("properties")?.as_object()?;
    members.keys().all(|key| declared.contains_key(key)).then_some(members)
}

fn from_text(text: &str) -> Option<Map<String, Json>> {
    if text.trim().is_empty() {
        return Some(Map::new());
    }
    let (mut reader, mut value) = (JsonReader::new(), String::new());
    let is_read = text.chars().all(|next| reader.push(next, &mut value) != Progress::Broken);
    let is_whole = is_read && reader.is_done();
    is_whole.then(|| serde_json::from_str(&value).ok())?
}
