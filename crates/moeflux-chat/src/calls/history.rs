//! Parts of calls in the form in which histories pass them to templates.

use serde_json::Value as Json;

use crate::conversation::Call;

/// Returns an id that contains the call's name. Templates write the id that they are given, which
/// contains the name only if the model itself chose it; `call_idx` is the index of the call in the
/// conversation.
pub(crate) fn named_id(prefix: &str, call: &Call, call_idx: usize) -> String {
    let name = format!("{prefix}{}", call.name);
    if is_numbered(&call.id, &name) { call.id.clone() } else { format!("{name}:{call_idx}") }
}

fn is_numbered(id: &str, name: &str) -> bool {
    let number = id.strip_prefix(name).and_then(|rest| rest.strip_prefix(':'));
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Writes JSON with the whitespace of Python, as templates do.
pub(crate) fn python_json(value: &Json) -> String {
    match value {
        Json::Array(values) => {
            let values: Vec<String> = values.iter().map(python_json).collect();
            format!("[{}]", values.join(", "))
        }
        Json::Object(members) => {
            let member = |(key, value): (&String, &Json)| {
                format!("{}: {}", Json::from(key.as_str()), python_json(value))
            };
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{{}}}", members.join(", "))
        }
        scalar => scalar.to_string(),
    }
}
