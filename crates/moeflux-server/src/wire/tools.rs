//! Definitions of tools, in the shapes of the dialects.
//!
//! **Invariant:** a tool that a client needs and the model cannot be offered is refused; tools that
//! a client offers to every server, and that only its own can run, are left out and reported.

use moeflux_chat::Tool;
use serde_json::Value as Json;

use crate::wire::failure::Failure;
use crate::wire::fields::{Fields, Ignored, element, unsupported, wrong};

const NOT_CONSTRAINED: &str = "calls cannot be forced yet; use `auto` or `none`";

/// The list `tools` of Chat Completions.
pub(crate) fn of_chat(fields: &mut Fields, ignored: &mut Ignored) -> Result<Vec<Tool>, Failure> {
    let path = fields.path("tools");
    let mut tools = Vec::new();
    for (index, tool) in fields.list("tools")?.into_iter().enumerate() {
        let mut tool = Fields::of(element(&path, index), tool)?;
        let kind = tool.required_string("type")?;
        if !["function", "custom"].contains(&kind.as_str()) {
            let instead = "use `function` or `custom`";
            return Err(unsupported(&tool.path("type"), &kind, instead));
        }
        let inner = Fields::of(tool.path(&kind), tool.required(&kind)?)?;
        tools.push(one(&kind, inner, ignored)?);
        tool.end(ignored);
    }
    Ok(tools)
}

/// A list of tools of Responses.
pub(crate) fn of_responses(
    path: &str,
    list: Vec<Json>,
    ignored: &mut Ignored,
) -> Result<Vec<Tool>, Failure> {
    let mut tools = Vec::new();
    for (index, tool) in list.into_iter().enumerate() {
        let mut tool = Fields::of(element(path, index), tool)?;
        let kind = tool.required_string("type")?;
        match kind.as_str() {
            "function" | "custom" => tools.push(one(&kind, tool, ignored)?),
            "namespace" => {
                let namespace = name(&mut tool)?;
                let members = tool.list("tools")?;
                let members = of_group(&tool.path("tools"), members, ignored)?;
                tools.extend(members.into_iter().map(|it| it.member_of(&namespace)));
                tool.drop_known(&["description"]);
                tool.end(ignored);
            }
            // Run by the servers of those who made the client.
            _ => ignored.add(&format!("{}={kind}", tool.path("type"))),
        }
    }
    Ok(tools)
}

/// The members of a namespace, which are no namespaces.
fn of_group(path: &str, list: Vec<Json>, ignored: &mut Ignored) -> Result<Vec<Tool>, Failure> {
    let mut tools = Vec::new();
    for (index, tool) in list.into_iter().enumerate() {
        let mut tool = Fields::of(element(path, index), tool)?;
        let kind = tool.required_string("type")?;
        match kind.as_str() {
            "function" | "custom" => tools.push(one(&kind, tool, ignored)?),
            _ => ignored.add(&format!("{}={kind}", tool.path("type"))),
        }
    }
    Ok(tools)
}

/// The list `tools` of Anthropic's Messages.
pub(crate) fn of_messages(
    fields: &mut Fields,
    ignored: &mut Ignored,
) -> Result<Vec<Tool>, Failure> {
    let path = fields.path("tools");
    let mut tools = Vec::new();
    for (index, tool) in fields.list("tools")?.into_iter().enumerate() {
        let mut tool = Fields::of(element(&path, index), tool)?;
        let kind = tool.string("type")?;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            let instead = "describe it with `input_schema`, without `type`";
            return Err(unsupported(&tool.path("type"), &kind, instead));
        }
        let name = name(&mut tool)?;
        let description = tool.string("description")?;
        let schema = tool.map("input_schema")?;
        tool.drop_known(&["cache_control", "strict", "eager_input_streaming"]);
        tool.end(ignored);
        let schema = (!schema.is_empty()).then_some(Json::Object(schema));
        tools.push(Tool::function(name, description, schema));
    }
    Ok(tools)
}

fn one(kind: &str, mut tool: Fields, ignored: &mut Ignored) -> Result<Tool, Failure> {
    let name = name(&mut tool)?;
    let description = tool.string("description")?;
    let found = if kind == "custom" {
        Tool::custom(name, description)
    } else {
        let parameters = tool.map("parameters")?;
        let parameters = (!parameters.is_empty()).then_some(Json::Object(parameters));
        tool.drop_known(&["strict"]);
        Tool::function(name, description, parameters)
    };
    tool.end(ignored);
    Ok(found)
}

fn name(tool: &mut Fields) -> Result<String, Failure> {
    let name = tool.required_string("name")?;
    if name.is_empty() {
        return Err(Failure::invalid(&tool.path("name"), "is empty"));
    }
    Ok(name)
}

/// Whether the model is offered the tools, by the field `tool_choice` of `OpenAI`'s dialects.
pub(crate) fn are_offered(fields: &mut Fields) -> Result<bool, Failure> {
    let path = fields.path("tool_choice");
    match fields.take("tool_choice") {
        None => Ok(true),
        Some(Json::String(choice)) => match choice.as_str() {
            "auto" => Ok(true),
            "none" => Ok(false),
            other => Err(unsupported(&path, other, NOT_CONSTRAINED)),
        },
        Some(Json::Object(choice)) => {
            let kind = choice.get("type").and_then(Json::as_str).unwrap_or("an object");
            Err(unsupported(&path, kind, NOT_CONSTRAINED))
        }
        Some(other) => Err(wrong(&path, "a string or an object", &other)),
    }
}

/// The same of Anthropic's Messages.
pub(crate) fn are_offered_by_type(
    fields: &mut Fields,
    ignored: &mut Ignored,
) -> Result<bool, Failure> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(true) };
    let kind = choice.required_string("type")?;
    let path = choice.path("type");
    choice.end(ignored);
    match kind.as_str() {
        "auto" => Ok(true),
        "none" => Ok(false),
        other => Err(unsupported(&path, other, NOT_CONSTRAINED)),
    }
}

/// Refuses a format of the answer that is not plain text.
pub(crate) fn refuse_format(
    fields: &mut Fields,
    key: &str,
    ignored: &mut Ignored,
) -> Result<(), Failure> {
    let Some(mut format) = fields.object(key)? else { return Ok(()) };
    let kind = format.required_string("type")?;
    if kind != "text" {
        let instead = "this server does not constrain answers yet";
        return Err(unsupported(&format.path("type"), &kind, instead));
    }
    format.end(ignored);
    Ok(())
}

#[cfg(test)]
mod tests {
    use moeflux_chat::ToolKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_of_an_agent_are_taken_or_reported() {
        let list = json!([
            {"type": "function", "name": "exec", "strict": false, "parameters": {"type": "object"}},
            {"type": "custom", "name": "patch", "format": {"type": "grammar"}},
            {"type": "namespace", "name": "agents", "description": "d", "tools": [
                {"type": "function", "name": "close"}, {"type": "web_search"}]},
            {"type": "web_search", "external_web_access": false},
        ]);
        let Json::Array(list) = list else { panic!("a list") };
        let mut ignored = Ignored::default();
        let tools = of_responses("tools", list, &mut ignored).unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["exec", "patch", "agents__close"]);
        assert_eq!(tools[0].parameters, json!({"type": "object"}));
        assert_eq!(tools[1].kind, ToolKind::Custom);
        let ignored: Vec<&str> = ignored.names().collect();
        let expected =
            ["tools[].format", "tools[].tools[].type=web_search", "tools[].type=web_search"];
        assert_eq!(ignored, expected);
    }

    #[test]
    fn tools_of_servers_are_refused_where_they_are_asked_for() {
        let refused = |tool: Json| {
            let mut fields = Fields::of(String::new(), json!({"tools": [tool]})).unwrap();
            of_messages(&mut fields, &mut Ignored::default()).unwrap_err().message
        };
        let problem = refused(json!({"type": "web_search_20250305", "name": "web_search"}));
        assert!(problem.starts_with("`tools[0].type`: `web_search_20250305` is not supported"));
        assert_eq!(refused(json!({})), "`tools[0].name`: is missing");
        assert_eq!(refused(json!({"name": ""})), "`tools[0].name`: is empty");
    }

    #[test]
    fn forced_calls_are_refused() {
        let offered = |choice: Json| {
            let mut fields = Fields::of(String::new(), json!({"tool_choice": choice})).unwrap();
            are_offered(&mut fields).map_err(|failure| failure.message)
        };
        assert_eq!(offered(Json::Null), Ok(true));
        assert_eq!(offered(json!("auto")), Ok(true));
        assert_eq!(offered(json!("none")), Ok(false));
        let required = offered(json!("required")).unwrap_err();
        assert!(required.starts_with("`tool_choice`: `required` is not supported"), "{required}");
        let named = offered(json!({"type": "function", "function": {"name": "f"}})).unwrap_err();
        assert!(named.starts_with("`tool_choice`: `function` is not supported"), "{named}");
        assert!(offered(json!(5)).unwrap_err().contains("expected a string or an object, got 5"));
    }
}
