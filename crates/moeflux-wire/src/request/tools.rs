//! Tool definitions, in the shapes of the dialects.
//!
//! **Invariant:** a tool that a client needs but that cannot be offered to the model is refused;
//! tools that a client offers to every server, and that only its vendor's servers can run, are left
//! out and reported.

use moeflux_chat::{AnswerForm, Tool};
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, unsupported};
use crate::request::form;

/// Maximum number of tools in a request; agents offer a hundred. Names are looked up linearly.
const N_TOOLS_MAX: usize = 1_024;

/// Refuses a list with too many tools.
pub(crate) fn check_count(path: &str, n_tools: usize) -> Result<(), Failure> {
    if n_tools <= N_TOOLS_MAX {
        return Ok(());
    }
    let problem = format!("{n_tools} tools are too many; the limit is {N_TOOLS_MAX}");
    Err(Failure::invalid(path, problem))
}

/// Takes a list of tools.
pub(crate) fn list_of(fields: &mut Fields, path: &str) -> Result<Vec<Json>, Failure> {
    let list = fields.list("tools")?;
    check_count(path, list.len())?;
    Ok(list)
}

/// Reads the list `tools` of Chat Completions.
pub(crate) fn of_chat(fields: &mut Fields, ignored: &mut Ignored) -> Result<Vec<Tool>, Failure> {
    let path = fields.path("tools");
    let mut tools = Vec::new();
    for (index, tool) in list_of(fields, &path)?.into_iter().enumerate() {
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

/// Reads a list of tools of Responses.
pub(crate) fn of_responses(
    path: &str,
    list: Vec<Json>,
    ignored: &mut Ignored,
) -> Result<Vec<Tool>, Failure> {
    check_count(path, list.len())?;
    let mut tools = Vec::new();
    for (index, tool) in list.into_iter().enumerate() {
        let mut tool = Fields::of(element(path, index), tool)?;
        let kind = tool.required_string("type")?;
        match kind.as_str() {
            "function" | "custom" => tools.push(one(&kind, tool, ignored)?),
            "namespace" => {
                let namespace = name(&mut tool)?;
                let path = tool.path("tools");
                let members = list_of(&mut tool, &path)?;
                let members = of_group(&path, members, ignored)?;
                tools.extend(members.into_iter().map(|it| it.member_of(&namespace)));
                tool.drop_known(&["description"]);
                tool.end(ignored);
            }
            // Tools that run on the servers of the client's vendor.
            _ => ignored.add(&format!("{}={kind}", tool.path("type"))),
        }
    }
    check_count(path, tools.len())?;
    Ok(tools)
}

/// Reads the members of a namespace, which cannot contain namespaces.
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

/// Reads the list `tools` of Anthropic's Messages.
pub(crate) fn of_messages(
    fields: &mut Fields,
    ignored: &mut Ignored,
) -> Result<Vec<Tool>, Failure> {
    let path = fields.path("tools");
    let mut tools = Vec::new();
    for (index, tool) in list_of(fields, &path)?.into_iter().enumerate() {
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
        custom(name, description, &mut tool, ignored)?
    } else {
        let parameters = tool.map("parameters")?;
        let parameters = (!parameters.is_empty()).then_some(Json::Object(parameters));
        tool.drop_known(&["strict"]);
        Tool::function(name, description, parameters)
    };
    tool.end(ignored);
    Ok(found)
}

/// Reads a custom tool. A regular expression becomes part of the schema and is enforced. A grammar
/// in Lark cannot be part of it: as at `OpenAI`, the model reads it in the description, and may
/// violate it. Refusing it would exclude agents whose patch tool has one.
fn custom(
    name: String,
    description: Option<String>,
    tool: &mut Fields,
    ignored: &mut Ignored,
) -> Result<Tool, Failure> {
    let path = tool.path("format");
    Ok(match form::of_custom_tool(tool, ignored)? {
        Some(AnswerForm::Regex(regex)) => {
            let mut tool = Tool::custom(name, description);
            tool.parameters["properties"]["input"]["pattern"] = format!("^(?:{regex})$").into();
            tool
        }
        Some(AnswerForm::Lark(grammar)) => {
            ignored.add(&format!("{path}=lark"));
            let mut description = description.unwrap_or_default();
            if !description.is_empty() {
                description.push_str("\n\n");
            }
            description.push_str("`input` follows this grammar in Lark:\n");
            description.push_str(&grammar);
            Tool::custom(name, Some(description))
        }
        _ => Tool::custom(name, description),
    })
}

fn name(tool: &mut Fields) -> Result<String, Failure> {
    let name = tool.required_string("name")?;
    if name.is_empty() {
        return Err(Failure::invalid(&tool.path("name"), "is empty"));
    }
    Ok(name)
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
            {"type": "custom", "name": "patch", "format": {"type": "text"}, "color": "red"},
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
            ["tools[].color", "tools[].tools[].type=web_search", "tools[].type=web_search"];
        assert_eq!(ignored, expected);
    }

    #[test]
    fn tools_that_run_on_servers_are_refused() {
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
    fn formats_of_custom_tools_reach_the_model() {
        let tool = |format: Json| {
            let tool = json!({"type": "custom", "name": "patch", "description": "d",
                "format": format});
            let mut ignored = Ignored::default();
            let tools = of_responses("tools", vec![tool], &mut ignored);
            let names: Vec<String> = ignored.names().map(str::to_owned).collect();
            tools.map(|mut tools| (tools.remove(0), names)).map_err(|failure| failure.message)
        };
        let (plain, ignored) = tool(json!({"type": "text"})).unwrap();
        assert_eq!(plain, Tool::custom("patch".into(), Some("d".into())));
        assert!(ignored.is_empty());
        let (found, ignored) =
            tool(json!({"type": "grammar", "syntax": "regex", "definition": "a|b"})).unwrap();
        let input = json!({"type": "string", "pattern": "^(?:a|b)$"});
        assert_eq!(found.parameters["properties"]["input"], input);
        assert!(ignored.is_empty());
        let lark = json!({"syntax": "lark", "definition": "start: \"a\""});
        let (found, ignored) = tool(json!({"type": "grammar", "grammar": lark})).unwrap();
        let description = "d\n\n`input` follows this grammar in Lark:\nstart: \"a\"";
        assert_eq!(found.description.as_deref(), Some(description));
        assert_eq!(found.parameters, plain.parameters);
        assert_eq!(ignored, ["tools[].format=lark"]);
        let problem = tool(json!({"type": "grammar", "syntax": "ebnf"})).unwrap_err();
        assert!(problem.starts_with("`tools[0].format.syntax`: `ebnf` is not supported"));
        let problem = tool(json!({"type": "grammar"})).unwrap_err();
        assert_eq!(problem, "`tools[0].format`: needs `syntax` and `definition`");
        let problem = tool(json!({"type": "image"})).unwrap_err();
        assert!(problem.starts_with("`tools[0].format.type`: `image` is not supported"));
    }
}
